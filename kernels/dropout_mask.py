"""Dropout masks that are a hash of a key and an element's place, so that no layout and no device changes them.

One 32-bit hash for every (key, place), by rounds of multiplication and exclusive or with shifts; integer arithmetic, so
that `dropout_mask_triton` draws the very same bits inside a kernel.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

SPREAD = 0x9E3779B1  # takes places that follow each other apart
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))  # shift, factor; a last shift by 16 follows
_MASK32 = 0xFFFFFFFF


def signed(x: int) -> int:
    """The 32-bit pattern as a signed number, which is what torch's int32 holds."""
    return x - (1 << 32) if x >= 1 << 31 else x


@dataclass(frozen=True)
class DropoutMask:
    """Which elements of several blocks are kept; `keys` [blocks, 2] int32. Who drops says what a block is."""

    keys: torch.Tensor
    rate: float
    first: int = 0  # place of a block's first element

    @property
    def threshold(self) -> int:
        """The least int32 that is kept; the bits are uniform over int32."""
        return int(self.rate * (1 << 32)) - (1 << 31)

    @property
    def scale(self) -> float:
        """What the kept elements are multiplied by."""
        return 1.0 / (1.0 - self.rate)

    def kept(self, elements: int) -> torch.Tensor:
        """Whether each of a block's elements is kept: bool [blocks, elements]."""
        return self.bits(elements) >= self.threshold

    def bits(self, elements: int) -> torch.Tensor:
        """The hash of each element as int32 [blocks, elements]."""
        keys = self.keys
        x = torch.arange(self.first, self.first + elements, dtype=torch.int32, device=keys.device).mul_(signed(SPREAD))
        x = x ^ keys[:, 0:1]
        shifted = torch.empty_like(x)
        for shift, factor in ROUNDS:
            _mix(x, shift, shifted)
            x *= signed(factor)
            x += keys[:, 1:2]
        return _mix(x, 16, shifted)


def _mix(x: torch.Tensor, shift: int, shifted: torch.Tensor) -> torch.Tensor:
    """x ^= x >> shift in place, the bits that come in being zeros; `shifted` is overwritten."""
    torch.bitwise_right_shift(x, shift, out=shifted)
    shifted &= _MASK32 >> shift
    x ^= shifted
    return x


class _Drop(torch.autograd.Function):
    """x * kept * scale, keeping one byte an element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return multiplied(x, kept, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return multiplied(grad, kept, ctx.scale), None, None


def multiplied(x: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    """x * kept * scale; on a GPU in one pass, by the operator for this very product."""
    if not x.is_cuda:
        return torch.mul(x, kept).mul_(scale)
    product: torch.Tensor = torch.ops.aten.native_dropout_backward(x, kept, scale)
    return product


def dropped(x: torch.Tensor, mask: DropoutMask) -> torch.Tensor:
    """Drop elements of x [..., r, c], whose leading dimensions are the mask's blocks."""
    kept = mask.kept(x.shape[-2] * x.shape[-1])
    return _Drop.apply(x, kept.view(x.shape), mask.scale)


def dropped_rows(x: torch.Tensor, mask: DropoutMask) -> torch.Tensor:
    """Drop elements of activations x [s, b, h], each of whose b sequences is a block."""
    return _Drop.apply(x, kept_of_rows(mask, x.shape), mask.scale)


def kept_of_rows(mask: DropoutMask, shape: torch.Size) -> torch.Tensor:
    """Which elements of activations [s, b, h] are kept, each of the b sequences being a block."""
    s, b, h = shape
    return mask.kept(s * h).view(b, s, h).transpose(0, 1)
