"""Token sources and the global batch: the same sequences for every layout.

Sequence number n of the run is the same tokens everywhere; iteration k trains on numbers [kB, (k+1)B), and a
data-parallel rank takes a contiguous share of them.
"""

import hashlib
import random
from typing import Protocol

import torch

from suite.experiment.point import Point
from suite.experiment.text import find_text
from suite.model.dropout import Dropout
from suite.model.gpt import Microbatch


class Source(Protocol):
    """Tokens by sequence number."""

    def sequence(self, number: int) -> torch.Tensor:
        """Tokens [s + 1] of the sequence with this number."""

    @property
    def digest(self) -> str:
        """A short hash of what the tokens are drawn from."""


class SyntheticTokens:
    """Uniformly random tokens that depend on the seed and the sequence number only."""

    def __init__(self, seed: int, vocab_size: int, seq_length: int) -> None:
        self.seed, self.vocab_size, self.seq_length = seed, vocab_size, seq_length

    def sequence(self, number: int) -> torch.Tensor:
        """Tokens [s + 1] of the sequence with this number."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        return torch.randint(self.vocab_size, (self.seq_length + 1,), generator=generator)

    @property
    def digest(self) -> str:
        """A short hash of what the tokens are drawn from."""
        return f"synthetic-{self.seed}"


class TextBytes:
    """The bytes of a text as tokens, cut into windows of s + 1, shuffled by the seed, anew each epoch."""

    def __init__(self, text: bytes, seed: int, seq_length: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.seed, self.seq_length = seed, seq_length
        self.windows = (len(text) - 1) // seq_length
        self.epoch, self.order = -1, list[int]()
        self.digest = hashlib.sha256(text).hexdigest()[:16]

    def sequence(self, number: int) -> torch.Tensor:
        """Tokens [s + 1] of the sequence with this number."""
        epoch, place = divmod(number, self.windows)
        if epoch != self.epoch:
            self.order = list(range(self.windows))
            random.Random(f"{self.seed}:{epoch}").shuffle(self.order)
            self.epoch = epoch
        start = self.order[place] * self.seq_length
        return self.text[start : start + self.seq_length + 1].long()


def open_source(point: Point) -> Source:
    """The token source that a point names.

    Raises:
        ValueError: the text cannot be found.
    """
    seed, model = point.training.seed, point.model
    if point.data.source == "synthetic":
        return SyntheticTokens(seed, model.vocab_size, model.seq_length)
    return TextBytes(find_text(point.data.path).read_bytes(), seed, model.seq_length)


class Batches:
    """The microbatches of one data-parallel rank."""

    def __init__(self, point: Point, data_index: int, device: torch.device) -> None:
        self.source = open_source(point)
        self.point, self.data_index, self.device = point, data_index, device

    def microbatch(self, iteration: int, index: int) -> Microbatch:
        """Microbatch `index` of this rank in an iteration; tokens and targets are [s, b]."""
        training, model = self.point.training, self.point.model
        b = training.microbatch
        place = (self.data_index * self.point.microbatches + index) * b
        numbers = tuple(iteration * training.global_batch + place + j for j in range(b))
        tokens = torch.stack([self.source.sequence(number) for number in numbers], dim=1).to(self.device)
        in_batch = tuple(range(place, place + b))
        dropout = Dropout(model.dropout, training.seed, iteration, in_batch)
        return Microbatch(tokens[:-1].contiguous(), tokens[1:].contiguous(), dropout)
