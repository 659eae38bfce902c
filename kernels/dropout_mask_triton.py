"""The hash of `dropout_mask` inside kernels, and dropout of attention probabilities that keeps no mask."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.dropout_mask import DropoutMask
from suite.kernels.triton_types import accumulator, contiguous, warps_for

BLOCK = 1024


@triton.jit
def is_kept(place, key_ptr, threshold):
    """Whether the elements at these places (int32) of the block with this key are kept."""
    first = tl.load(key_ptr).to(tl.uint32, bitcast=True)
    second = tl.load(key_ptr + 1).to(tl.uint32, bitcast=True)
    x = (place.to(tl.uint32, bitcast=True) * 0x9E3779B1) ^ first
    x = ((x ^ (x >> 16)) * 0x7FEB352D) + second
    x = ((x ^ (x >> 15)) * 0x846CA68B) + second
    x = x ^ (x >> 16)
    return x.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def drop_kernel(x_ptr, y_ptr, keys_ptr, elements, first, threshold, scale, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Some elements of one of the mask's blocks."""
    block = tl.program_id(1)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < elements
    start = block.to(tl.int64) * elements
    x = tl.load(x_ptr + start + offsets, mask=inside, other=0.0).to(ACC)
    kept = is_kept(first + offsets, keys_ptr + 2 * block, threshold)
    tl.store(y_ptr + start + offsets, tl.where(kept, x * scale, 0.0), mask=inside)


def _drop(x: torch.Tensor, mask: DropoutMask) -> torch.Tensor:
    blocks, y = len(mask.keys), torch.empty_like(x)
    elements = x.numel() // blocks
    drop_kernel[triton.cdiv(elements, BLOCK), blocks](  # the second dimension of a grid ends at 65535
        x,
        y,
        mask.keys,
        elements,
        mask.first,
        mask.threshold,
        mask.scale,
        ACC=accumulator(x.dtype),
        BLOCK=BLOCK,
        num_warps=warps_for(BLOCK),
    )
    return y


class _Drop(torch.autograd.Function):
    """Keeps nothing: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: DropoutMask) -> torch.Tensor:
        contiguous(x=x)
        ctx.mask = mask
        return _drop(x, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _drop(grad.contiguous(), ctx.mask), None


def dropped(x: torch.Tensor, mask: DropoutMask) -> torch.Tensor:
    """Drop elements of x [..., r, c], whose leading dimensions are the mask's blocks."""
    return _Drop.apply(x, mask)
