"""Dropout whose masks do not depend on the layout.

A mask is a hash of (seed, iteration, sequence in the global batch, layer, site, head) and the element's place
in it, computed with integers, so it is the same on every device and for every way of cutting the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

_MASK32 = 0xFFFFFFFF
SITES = ("embedding", "attention", "attention_output", "mlp_output")


def _mix(x: int) -> int:
    """A 64-bit finaliser (splitmix64's): every input bit reaches every output bit."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def _key(*parts: int) -> int:
    key = 0
    for part in parts:
        key = _mix((key + 0x9E3779B97F4A7C15 + part) & 0xFFFFFFFFFFFFFFFF)
    return key


def _signed(x: int) -> int:
    """The 32-bit pattern as a signed number, which is what torch's int32 holds."""
    return x - (1 << 32) if x >= 1 << 31 else x


def _uniform_bits(keys: torch.Tensor, first: int, elements: int) -> torch.Tensor:
    """One 32-bit hash (as int32) for every (key, element from `first` on): keys [..., 2] int32 to [..., elements]."""
    x = torch.arange(first, first + elements, dtype=torch.int32, device=keys.device).mul_(_signed(0x9E3779B1))
    x = x ^ keys[..., 0:1]
    for shift, factor in ((16, 0x7FEB352D), (15, _signed(0x846CA68B))):
        x ^= (x >> shift) & (_MASK32 >> shift)
        x *= factor
        x += keys[..., 1:2]
    x ^= (x >> 16) & (_MASK32 >> 16)
    return x


class _Drop(torch.autograd.Function):
    """x * kept * scale, keeping one byte an element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(x, kept, scale)  # the operator for this very product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, kept, ctx.scale), None, None


@dataclass(frozen=True)
class Dropout:
    """Dropout for the sequences of one microbatch in one iteration."""

    rate: float
    seed: int
    iteration: int
    sequences: tuple[int, ...]  # numbers in the global batch

    def _keys(self, layer: int, site: str, heads: range, device: torch.device) -> torch.Tensor:
        place = SITES.index(site)
        keys = [
            _key(self.seed, self.iteration, sequence, layer, place, head)
            for sequence in self.sequences
            for head in heads
        ]
        halves = [(_signed(key & _MASK32), _signed(key >> 32)) for key in keys]
        return torch.tensor(halves, dtype=torch.int32, device=device).view(len(self.sequences), len(heads), 2)

    def _apply(self, x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
        kept = bits >= int(self.rate * (1 << 32)) - (1 << 31)  # the bits are uniform over int32
        return _Drop.apply(x, kept, 1.0 / (1.0 - self.rate))

    def hidden(self, x: torch.Tensor, layer: int, site: str, first_row: int = 0) -> torch.Tensor:
        """Drop elements of activations [s, b, h], or of the rows of them that start at `first_row`."""
        if not self.rate:
            return x
        s, b, h = x.shape
        bits = _uniform_bits(self._keys(layer, site, range(1), x.device), first_row * h, s * h)
        return self._apply(x, bits.view(b, s, h).transpose(0, 1))

    def attention(self, probabilities: torch.Tensor, layer: int, heads: range) -> torch.Tensor:
        """Drop attention probabilities [b, heads, s, s] of the heads with these numbers in the whole model."""
        bits = _uniform_bits(
            self._keys(layer, "attention", heads, probabilities.device), 0, probabilities[0, 0].numel()
        )
        return self._apply(probabilities, bits.view(probabilities.shape))
