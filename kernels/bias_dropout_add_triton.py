"""Bias, dropout and residual sum in one pass forward and one backward; the mask is drawn in both."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.dropout_mask import DropoutMask
from suite.kernels.dropout_mask_triton import is_kept
from suite.kernels.triton_types import PROGRAMS, accumulator, block_of, contiguous, warps_for

BLOCK = 1024  # columns of a row that a program works on


@triton.jit
def forward_kernel(
    x_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    keys_ptr,
    width,
    sequences,
    first,
    threshold,
    scale,
    DROP: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of one row, which is one token of one sequence."""
    number = tl.program_id(0)
    row = tl.cast(number, tl.int64) * width
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(ACC)
    x += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(ACC)
    if DROP:
        place = first + (number // sequences) * width + columns
        x = tl.where(is_kept(place, keys_ptr + 2 * (number % sequences), threshold), x * scale, 0.0)
    x += tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(ACC)
    tl.store(y_ptr + row + columns, x, mask=inside)


@triton.jit
def backward_kernel(
    grad_ptr,
    grad_x_ptr,
    bias_parts_ptr,
    keys_ptr,
    rows,
    width,
    sequences,
    first,
    threshold,
    scale,
    DROP: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of every so many rows, and these rows' part of the bias's gradient."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    bias_part = tl.zeros((BLOCK,), dtype=ACC)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64) * width
        grad = tl.load(grad_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        if DROP:
            place = first + (number // sequences) * width + columns
            grad = tl.where(is_kept(place, keys_ptr + 2 * (number % sequences), threshold), grad * scale, 0.0)
        tl.store(grad_x_ptr + row + columns, grad, mask=inside)
        bias_part += grad
    part = tl.program_id(0).to(tl.int64) * width
    tl.store(bias_parts_ptr + part + columns, bias_part, mask=inside)


class _BiasDropoutAdd(torch.autograd.Function):
    """Keeps nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, mask: DropoutMask | None
    ) -> torch.Tensor:
        contiguous(x=x, residual=residual)
        ctx.mask, ctx.dtype, ctx.sequences = mask, bias.dtype, x.shape[1]
        width, y = x.shape[-1], torch.empty_like(x)
        block = min(BLOCK, block_of(width))
        grid = (x.numel() // width, triton.cdiv(width, block))
        launch = {"ACC": accumulator(x.dtype), "BLOCK": block, "num_warps": warps_for(block)}
        forward_kernel[grid](x, bias, residual, y, *_arguments(mask, x, width), **launch, DROP=mask is not None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        contiguous_grad, grad_x, width = grad.contiguous(), torch.empty_like(grad), grad.shape[-1]
        rows, block = grad.numel() // width, min(BLOCK, block_of(width))
        programs = min(rows, PROGRAMS)
        wide = torch.promote_types(grad.dtype, torch.float32)
        parts = torch.empty(programs, width, dtype=wide, device=grad.device)
        keys, *rest = _arguments(ctx.mask, grad, width)
        backward_kernel[programs, triton.cdiv(width, block)](
            contiguous_grad,
            grad_x,
            parts,
            keys,
            rows,
            *rest,
            DROP=ctx.mask is not None,
            ACC=accumulator(grad.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        return grad_x, parts.sum(0).to(ctx.dtype), grad, None


def _arguments(mask: DropoutMask | None, x: torch.Tensor, width: int) -> tuple[Any, ...]:
    """The mask as both kernels take it; without one the keys are not read."""
    if mask is None:
        return x, width, x.shape[1], 0, 0, 1.0
    return mask.keys, width, x.shape[1], mask.first, mask.threshold, mask.scale


def added(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, mask: DropoutMask | None) -> torch.Tensor:
    """residual + dropout(x + bias); x and residual [s, b, h], a block of the mask for each of the b sequences."""
    return _BiasDropoutAdd.apply(x, bias, residual, mask)
