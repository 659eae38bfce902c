"""Dropout whose masks do not depend on the layout.

A mask is a hash of (seed, iteration, sequence in the global batch, layer, site, head) and the element's place
in it, computed with integers, so it is the same on every device and for every way of cutting the model.
"""

from dataclasses import dataclass

import torch

from suite.kernels.dropout_mask import DropoutMask, dropped_rows, signed

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
        halves = [(signed(key & _MASK32), signed(key >> 32)) for key in keys]
        return torch.tensor(halves, dtype=torch.int32, device=device)

    def hidden(self, x: torch.Tensor, layer: int, site: str, first_row: int = 0) -> torch.Tensor:
        """Drop elements of activations [s, b, h], or of the rows of them that start at `first_row`."""
        mask = self.hidden_mask(x, layer, site, first_row)
        return x if mask is None else dropped_rows(x, mask)

    def hidden_mask(self, x: torch.Tensor, layer: int, site: str, first_row: int = 0) -> DropoutMask | None:
        """The mask for `hidden`; None drops nothing."""
        if not self.rate:
            return None
        keys = self._keys(layer, site, range(1), x.device)
        return DropoutMask(keys, self.rate, first_row * x.shape[-1])

    def attention_mask(self, device: torch.device, layer: int, heads: range) -> DropoutMask | None:
        """The mask of attention probabilities [b, heads, s, s] of the heads with these numbers in the whole model."""
        if not self.rate:
            return None
        return DropoutMask(self._keys(layer, "attention", heads, device), self.rate)
