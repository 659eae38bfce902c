"""Bias, dropout and residual sum: residual + dropout(x + bias); x and residual [s, b, h], bias [h] (paper section 4.2).

`mask` has a block for each of the b sequences; None drops nothing.
"""

from typing import Any

import torch as _torch
from torch.autograd.function import once_differentiable as _once_differentiable

from suite.kernels.dropout_mask import DropoutMask, kept_of_rows, multiplied


def reference(
    x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None
) -> _torch.Tensor:
    """Each step by itself."""
    y = x + bias
    if mask is not None:
        y = y * kept_of_rows(mask, x.shape) * mask.scale
    return residual + y


class _Fused(_torch.autograd.Function):
    """Keeps a byte an element, and works in place on what it has made."""

    @staticmethod
    def forward(
        ctx: Any, x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, kept: _torch.Tensor, scale: float
    ) -> _torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale, ctx.dtype = scale, bias.dtype
        return multiplied(x + bias, kept, scale).add_(residual)

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: _torch.Tensor) -> tuple[_torch.Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        grad_x = multiplied(grad, kept, ctx.scale)
        grad_bias = grad_x.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return grad_x, grad_bias, grad, None, None


def torch(x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """With as few passes and as little memory as torch's operators allow."""
    if mask is None:
        return (x + bias).add_(residual)
    return _Fused.apply(x, bias, residual, kept_of_rows(mask, x.shape), mask.scale)


def triton(x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """In one pass that draws the mask itself, forward and again backward, so that no mask is kept."""
    from suite.kernels.bias_dropout_add_triton import added

    return added(x, bias, residual, mask)
