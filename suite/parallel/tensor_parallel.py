"""Tensor parallelism (paper section 2.3): the f and g operators and the linear layers built on them.

Column-parallel layers split their output features over the tensor ranks, row-parallel layers their input
features; one all-reduce per pair of layers and direction.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from suite.parallel.parameters import ParameterSpec, create_parameter
from suite.parallel.topology import Group


class _Reduce(torch.autograd.Function):
    """Sum over tensor ranks forward, identity backward (the paper's g)."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.mark_dirty(partial)
        return group.all_reduce(partial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def reduce_from_tensor_ranks(partial: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum partial results of the tensor ranks, in place; the gradient passes unchanged."""
    return partial if group.size == 1 else _Reduce.apply(partial, group)


class _ColumnLinear(torch.autograd.Function):
    """y = x W^T forward; backward sums dx over tensor ranks while dW is computed (the paper's f)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return torch.matmul(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = torch.matmul(grad, weight)
        pending = ctx.group.all_reduce_async(grad_x)
        grad_weight = torch.matmul(grad.flatten(0, -2).t(), x.flatten(0, -2))
        if pending is not None:
            pending.wait()
        return grad_x, grad_weight, None


def column_linear(x: torch.Tensor, weight: torch.Tensor, group: Group) -> torch.Tensor:
    """x [..., in] times this rank's rows of the weight [out/t, in]: this rank's part of the outputs [..., out/t]."""
    if group.size == 1:
        return nn.functional.linear(x, weight)
    return _ColumnLinear.apply(x, weight, group)


class ColumnParallelLinear(nn.Module):
    """A linear layer whose output features are split over tensor ranks; adding the bias is left to the caller."""

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        std: float,
        group: Group,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.group = group
        weight = ParameterSpec(f"{name}.weight", (out_features, in_features), shard=0, std=std)
        bias = ParameterSpec(f"{name}.bias", (out_features,), shard=0, decay=False)
        self.weight = create_parameter(weight, group, seed, dtype)
        self.bias = create_parameter(bias, group, seed, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in] -> [s, b, out/t], without the bias."""
        return column_linear(x, self.weight, self.group)


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are split over tensor ranks; adding the bias is left to the caller."""

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        std: float,
        group: Group,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.group = group
        weight = ParameterSpec(f"{name}.weight", (out_features, in_features), shard=1, std=std)
        bias = ParameterSpec(f"{name}.bias", (out_features,), decay=False)
        self.weight = create_parameter(weight, group, seed, dtype)
        self.bias = create_parameter(bias, group, seed, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in/t] -> [s, b, out], summed over tensor ranks, without the bias."""
        return reduce_from_tensor_ranks(nn.functional.linear(x, self.weight), self.group)
