"""The vocabulary split over tensor ranks: embedding, logits and cross entropy.

The vocabulary is padded so that it divides; padded entries have no token, no probability and no gradient.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from suite.parallel.parameters import ModelParameter
from suite.parallel.tensor_parallel import TensorRanks, reduce_partial
from suite.parallel.topology import Group
from suite.parallel.weight_gradients import WeightGradients, tap


def vocab_embedding(
    tokens: torch.Tensor, weight: ModelParameter, ranks: TensorRanks, deferred: WeightGradients | None = None
) -> torch.Tensor:
    """Tokens [s, b] to embeddings [s, b, h] (or this rank's rows of them).

    This rank holds the weight's rows [index * V/t, (index + 1) * V/t). With `deferred` its gradient goes there.
    """
    used = weight if deferred is None else weight.detach()
    local, elsewhere = tokens, None
    if ranks.group.size > 1:
        local = tokens - ranks.group.index * weight.shape[0]
        elsewhere = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(elsewhere, 0)
    rows = torch.nn.functional.embedding(local, used)
    if elsewhere is not None:
        rows = rows.masked_fill(elsewhere.unsqueeze(-1), 0.0)
    if deferred is not None:
        rows = tap(rows, deferred, (weight, partial(_embedding_gradient, weight, local, elsewhere)))
    return reduce_partial(rows, ranks)


def _embedding_gradient(
    weight: torch.Tensor, local: torch.Tensor, elsewhere: torch.Tensor | None, grad: torch.Tensor
) -> torch.Tensor:
    """The gradient [V/t, h] from that of the rows [s, b, h] that were looked up."""
    if elsewhere is not None:
        grad = grad.masked_fill(elsewhere.unsqueeze(-1), 0.0)
    whole = torch.zeros(weight.shape, dtype=torch.promote_types(grad.dtype, torch.float32), device=grad.device)
    return whole.index_add_(0, local.flatten(), grad.flatten(0, -2).to(whole.dtype))


class _VocabCrossEntropy(torch.autograd.Function):
    """Summed negative log-likelihood over logits whose last dimension is split over tensor ranks."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, group: Group) -> torch.Tensor:
        width = logits.shape[-1]
        local = targets - group.index * width
        elsewhere = (local < 0) | (local >= width)
        local = local.masked_fill(elsewhere, 0)
        probability = logits.detach().to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        real = max(0, min(width, vocab_size - group.index * width))
        probability[..., real:] = -torch.inf
        top = group.all_reduce(probability.amax(dim=-1), dist.ReduceOp.MAX)
        probability -= top.unsqueeze(-1)
        picked = probability.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        probability.exp_()
        sums = torch.stack([probability.sum(dim=-1), picked])
        total, chosen = group.all_reduce(sums)
        probability /= total.unsqueeze(-1)
        ctx.save_for_backward(probability, local, elsewhere)
        ctx.dtype = logits.dtype
        return (total.log() - chosen).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        probability, local, elsewhere = ctx.saved_tensors
        hit = (~elsewhere).to(probability.dtype).unsqueeze(-1)
        probability.scatter_add_(-1, local.unsqueeze(-1), -hit)
        return (probability * grad).to(ctx.dtype), None, None, None


def vocab_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, group: Group) -> torch.Tensor:
    """Sum over tokens of the cross entropy, a scalar, equal on every tensor rank.

    `logits` [s, b, Vpadded/t] are this rank's columns, `targets` [s, b] global token numbers below `vocab_size`.
    """
    return _VocabCrossEntropy.apply(logits, targets, vocab_size, group)
