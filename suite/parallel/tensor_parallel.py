"""Tensor parallelism (paper section 2.3) and sequence parallelism (Korthikanti et al. 2022, section 4.2.2).

Column-parallel layers split their output features over the tensor ranks, row-parallel layers their input
features. Between a row-parallel layer and the next column-parallel one, activations are whole on every tensor
rank (one all-reduce per pair of layers and direction), or, with sequence parallelism, split along the sequence
(a reduce-scatter and an all-gather in its place).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from suite.parallel.parameters import ModelParameter, ParameterSpec, create_parameter
from suite.parallel.topology import ALONE, Group
from suite.parallel.weight_gradients import WeightGradients, product_gradient, tap


@dataclass(frozen=True)
class TensorRanks:
    """The tensor ranks, and whether activations between their layers are split along the sequence."""

    group: Group = ALONE
    sequence: bool = False

    def first_row(self, rows: int) -> int:
        """The place in the sequence of the first of the `rows` that this rank holds."""
        return self.group.index * rows if self.sequence else 0


class _Reduce(torch.autograd.Function):
    """Sum over tensor ranks forward, identity backward (the paper's g)."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.mark_dirty(part)
        return group.all_reduce(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _ReduceScatter(torch.autograd.Function):
    """Sum over tensor ranks and split along the sequence forward, gather the sequence backward."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return group.reduce_scatter(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.all_gather(grad), None


def reduce_partial(part: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """Sum the tensor ranks' partial results [s, ...]; with sequence parallelism this rank's rows [s/t, ...] of it.

    `part` may be overwritten.
    """
    if ranks.group.size == 1:
        return part
    return (_ReduceScatter if ranks.sequence else _Reduce).apply(part, ranks.group)


class _ColumnLinear(torch.autograd.Function):
    """y = x W^T forward; backward sums dx over tensor ranks while dW is computed (the paper's f).

    With `gradients` dW is added to the weight's main gradient, and autograd has none.

    With sequence parallelism x [s/t, b, h] is gathered before the product, forward and again backward, so that only
    a rank's own rows are kept; and dx is summed and split in one reduce-scatter.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, ranks: TensorRanks, gradients: WeightGradients | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.ranks, ctx.gradients = ranks, gradients
        return torch.matmul(ranks.group.all_gather(x) if ranks.sequence else x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        ranks: TensorRanks = ctx.ranks
        wanted = ctx.needs_input_grad[1]
        whole = ranks.group.all_gather(x) if ranks.sequence and wanted else x
        grad_x = torch.matmul(grad, weight)
        if ranks.sequence:
            grad_x, pending = ranks.group.reduce_scatter_async(grad_x)
        else:
            pending = ranks.group.all_reduce_async(grad_x) if ranks.group.size > 1 else None
        grad_weight = None
        if wanted and ctx.gradients is None:
            grad_weight = product_gradient(whole, grad)
        elif wanted:
            ctx.gradients.add_weight(weight, whole, grad)
        if pending is not None:
            pending.wait()
        return grad_x, grad_weight, None, None


def column_linear(
    x: torch.Tensor, weight: ModelParameter, ranks: TensorRanks, gradients: WeightGradients | None = None
) -> torch.Tensor:
    """x times this rank's rows of the weight [out/t, in]: this rank's part of the outputs [s, b, out/t].

    x is [s, b, in], or [s/t, b, in] with sequence parallelism. With `gradients` the weight's gradient goes there.
    """
    if ranks.group.size == 1:
        ranks = TensorRanks()
    if gradients is None or not gradients.split:
        return _ColumnLinear.apply(x, weight, ranks, gradients)
    y = _ColumnLinear.apply(x, weight.detach(), ranks, None)
    kept = x.detach()

    def add(main: torch.Tensor, grad: torch.Tensor) -> None:
        gradients.add_product(main, ranks.group.all_gather(kept) if ranks.sequence else kept, grad)

    return tap(y, gradients, (weight, add))


class _SplitLinear(nn.Module):
    """A linear layer whose weight is split over tensor ranks along one dimension; adding the bias is the caller's."""

    split: int  # 0: output features, 1: input features

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        std: float,
        ranks: TensorRanks,
        seed: int,
        dtype: torch.dtype,
        gradients: WeightGradients | None,
    ) -> None:
        super().__init__()
        self.ranks, self.gradients = ranks, gradients
        weight = ParameterSpec(f"{name}.weight", (out_features, in_features), shard=self.split, std=std)
        bias = ParameterSpec(f"{name}.bias", (out_features,), shard=None if self.split else 0, decay=False)
        self.weight = create_parameter(weight, ranks.group, seed, dtype)
        self.bias = create_parameter(bias, ranks.group, seed, dtype)


class ColumnParallelLinear(_SplitLinear):
    """Split by output features, and so is the bias."""

    split = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in] (or this rank's rows of it) -> [s, b, out/t], without the bias."""
        return column_linear(x, self.weight, self.ranks, self.gradients)


class RowParallelLinear(_SplitLinear):
    """Split by input features; the bias, added to the sum, is whole on every tensor rank."""

    split = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in/t] -> [s, b, out] (or this rank's rows of it), summed over tensor ranks, without the bias."""
        return reduce_partial(column_linear(x, self.weight, TensorRanks(), self.gradients), self.ranks)


def sum_replicated_gradients(gradients: list[torch.Tensor], ranks: TensorRanks) -> None:
    """With sequence parallelism, add up the gradients of parameters that every tensor rank holds whole, in place.

    Each rank has seen only its own rows of the sequence. Without sequence parallelism nothing is to be done.
    """
    if not ranks.sequence or ranks.group.size == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    ranks.group.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
