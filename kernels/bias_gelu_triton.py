"""Bias and GELU in one pass forward and one backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.triton_types import PROGRAMS, accumulator, block_of, contiguous, warps_for

BLOCK = 1024  # columns of a row that a program works on


@triton.jit
def _slope(y, ACC: tl.constexpr):
    """The argument of the sigmoid in y * sigmoid(u), which is the tanh form, and how it grows with y."""
    root = tl.full((1,), 1.5957691216057308, dtype=ACC)  # 2 sqrt(2/pi); a bare number would have 32 bits
    cubic = tl.full((1,), 0.044715, dtype=ACC)
    return root * (y + cubic * y * y * y), root * (1.0 + 3.0 * cubic * y * y)


@triton.jit
def forward_kernel(x_ptr, bias_ptr, y_ptr, width, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    y = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(ACC)
    y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(ACC)
    u, _ = _slope(y, ACC)
    tl.store(y_ptr + row + columns, y / (1.0 + tl.exp(-u)), mask=inside)


@triton.jit
def backward_kernel(
    x_ptr, bias_ptr, grad_ptr, grad_x_ptr, bias_parts_ptr, rows, width, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of every so many rows, and these rows' part of the bias's gradient."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(ACC)
    bias_part = tl.zeros((BLOCK,), dtype=ACC)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64) * width
        y = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(ACC) + bias
        grad = tl.load(grad_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        u, slope = _slope(y, ACC)
        gate = 1.0 / (1.0 + tl.exp(-u))
        grad_x = grad * gate * (1.0 + y * (1.0 - gate) * slope)
        tl.store(grad_x_ptr + row + columns, grad_x, mask=inside)
        bias_part += grad_x
    part = tl.program_id(0).to(tl.int64) * width
    tl.store(bias_parts_ptr + part + columns, bias_part, mask=inside)


class _BiasGelu(torch.autograd.Function):
    """Keeps its input, which the product before it keeps for nobody else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        contiguous(x=x)
        ctx.save_for_backward(x, bias)
        width, y = x.shape[-1], torch.empty_like(x)
        block = min(BLOCK, block_of(width))
        grid = (x.numel() // width, triton.cdiv(width, block))
        forward_kernel[grid](x, bias, y, width, ACC=accumulator(x.dtype), BLOCK=block, num_warps=warps_for(block))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, bias = ctx.saved_tensors
        width = x.shape[-1]
        rows, block, grad_x = x.numel() // width, min(BLOCK, block_of(width)), torch.empty_like(x)
        programs = min(rows, PROGRAMS)
        wide = torch.promote_types(x.dtype, torch.float32)
        parts = torch.empty(programs, width, dtype=wide, device=x.device)
        backward_kernel[programs, triton.cdiv(width, block)](
            x,
            bias,
            grad.contiguous(),
            grad_x,
            parts,
            rows,
            width,
            ACC=accumulator(x.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        return grad_x, parts.sum(0).to(bias.dtype)


def biased_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU(x + bias); x [..., f], bias [f]."""
    return _BiasGelu.apply(x, bias)
