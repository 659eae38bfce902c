"""Softmax of scaled scores under a causal or a given mask, in one pass forward and one backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.triton_types import accumulator, block_of, contiguous, warps_for


@triton.jit
def forward_kernel(
    scores_ptr,
    hidden_ptr,
    y_ptr,
    rows,
    width,
    heads,
    scale,
    CAUSAL: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of the scores of one head; a mask is shared by the heads of a sequence."""
    number, matrix = tl.program_id(0), tl.program_id(1)
    row = (matrix.to(tl.int64) * rows + number) * width
    columns = tl.arange(0, BLOCK)
    seen = columns < width
    if CAUSAL:
        seen = seen & (columns <= number)
    else:
        mask_row = ((matrix // heads).to(tl.int64) * rows + number) * width
        seen = seen & (tl.load(hidden_ptr + mask_row + columns, mask=seen, other=1) == 0)
    x = tl.load(scores_ptr + row + columns, mask=seen, other=0.0).to(ACC) * scale
    x = tl.where(seen, x, -float("inf"))
    exponentials = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + columns, exponentials / tl.sum(exponentials, axis=0), mask=columns < width)


@triton.jit
def backward_kernel(
    y_ptr, grad_ptr, grad_x_ptr, rows, width, scale, CAUSAL: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    """One row; a probability of 0 has no gradient, so that the mask is not needed again."""
    number = tl.program_id(0)
    row = (tl.program_id(1).to(tl.int64) * rows + number) * width
    columns = tl.arange(0, BLOCK)
    seen = columns < width
    if CAUSAL:
        seen = seen & (columns <= number)
    y = tl.load(y_ptr + row + columns, mask=seen, other=0.0).to(ACC)
    weighted = y * tl.load(grad_ptr + row + columns, mask=seen, other=0.0).to(ACC)
    grad_x = (weighted - y * tl.sum(weighted, axis=0)) * scale
    tl.store(grad_x_ptr + row + columns, grad_x, mask=columns < width)


class _Softmax(torch.autograd.Function):
    """Keeps the probabilities."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, hidden: torch.Tensor | None, scale: float) -> torch.Tensor:
        contiguous(scores=scores, hidden=hidden)
        y = torch.empty_like(scores)
        ctx.save_for_backward(y)
        ctx.scale, ctx.causal = scale, hidden is None
        rows, width = scores.shape[-2:]
        matrices = scores.numel() // (rows * width)
        block = block_of(width)
        forward_kernel[rows, matrices](
            scores,
            scores if hidden is None else hidden.view(torch.uint8),
            y,
            rows,
            width,
            1 if hidden is None else matrices // len(hidden),
            scale,
            CAUSAL=hidden is None,
            ACC=accumulator(scores.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (y,) = ctx.saved_tensors
        rows, width = y.shape[-2:]
        grad_x, block = torch.empty_like(y), block_of(width)
        backward_kernel[rows, y.numel() // (rows * width)](
            y,
            grad.contiguous(),
            grad_x,
            rows,
            width,
            ctx.scale,
            CAUSAL=ctx.causal,
            ACC=accumulator(y.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        return grad_x, None, None


def masked(scores: torch.Tensor, hidden: torch.Tensor | None, scale: float) -> torch.Tensor:
    """softmax(scale * scores) of [..., s, t], where `hidden` [b, 1, s, t] is false, or causally where it is None."""
    return _Softmax.apply(scores, hidden, scale)
