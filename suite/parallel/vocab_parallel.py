"""The vocabulary split over tensor ranks: embedding, logits and cross entropy.

The vocabulary is padded so that it divides; padded entries have no token, no probability and no gradient.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from suite.parallel.parameters import ModelParameter
from suite.parallel.tensor_parallel import TensorRanks, reduce_partial
from suite.parallel.topology import Group
from suite.parallel.weight_gradients import WeightGradients, tap

AddRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def vocab_embedding(
    tokens: torch.Tensor,
    weight: ModelParameter,
    ranks: TensorRanks,
    add_rows: AddRows,
    gradients: WeightGradients | None = None,
) -> torch.Tensor:
    """Tokens [s, b] to embeddings [s, b, h] (or this rank's rows of them).

    This rank holds the weight's rows [index * V/t, (index + 1) * V/t). With `gradients` its gradient goes there, added
    by `add_rows`, the chosen kernel.
    """
    used = weight if gradients is None else weight.detach()
    local, elsewhere = tokens, None
    if ranks.group.size > 1:
        local = tokens - ranks.group.index * weight.shape[0]
        elsewhere = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(elsewhere, 0)
    rows = torch.nn.functional.embedding(local, used)
    if elsewhere is not None:
        rows = rows.masked_fill(elsewhere.unsqueeze(-1), 0.0)
    if gradients is not None:

        def add(main: torch.Tensor, grad: torch.Tensor) -> None:
            add_rows(main, local, grad if elsewhere is None else grad.masked_fill(elsewhere.unsqueeze(-1), 0.0))

        rows = tap(rows, gradients, (weight, add))
    return reduce_partial(rows, ranks)


def vocab_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, group: Group, kernel: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Sum over tokens of the cross entropy, a scalar, equal on every tensor rank, by the chosen kernel.

    `logits` [s, b, Vpadded/t] are this rank's columns, `targets` [s, b] global token numbers below `vocab_size`.
    """
    width = logits.shape[-1]
    first = group.index * width
    real = max(0, min(width, vocab_size - first))
    if group.size == 1:
        return kernel(logits, targets, first, real)
    return kernel(logits, targets, first, real, partial(group.all_reduce, op=dist.ReduceOp.MAX), group.all_reduce)
