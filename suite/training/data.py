"""Token sources and the global batch: the same sequences for every layout.

Sequence number n of the run is the same tokens everywhere; iteration k trains on numbers [kB, (k+1)B), and a
data-parallel rank takes a contiguous share of them. A source is a pure function of the number, so that the number of
the next sequence is all of the data's position that a checkpoint has to keep.
"""

import random
from pathlib import Path
from typing import Protocol

import torch

from suite.experiment.data_digest import text_digest
from suite.experiment.point import Point
from suite.experiment.text import find_text, too_short
from suite.experiment.tokenizer import load_tokenizer, tokenized
from suite.model.dropout import Dropout
from suite.model.gpt import Microbatch
from suite.training.megatron_data import MegatronTokens

HELD_OUT_SEED = 1 << 30  # what makes a seed of synthetic tokens another


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


class TextTokens:
    """The tokens of a text, cut into windows of s + 1, shuffled by the seed, anew each epoch."""

    def __init__(self, tokens: torch.Tensor, digest: str, seed: int, seq_length: int) -> None:
        """`tokens` are [tokens of the text], of any integer type; `digest` says what they are."""
        self.tokens, self.digest = tokens, digest
        self.seed, self.seq_length = seed, seq_length
        self.windows = (len(tokens) - 1) // seq_length
        self.epoch, self.order = -1, list[int]()

    def sequence(self, number: int) -> torch.Tensor:
        """Tokens [s + 1] of the sequence with this number."""
        epoch, place = divmod(number, self.windows)
        if epoch != self.epoch:
            self.order = list(range(self.windows))
            random.Random(f"{self.seed}:{epoch}").shuffle(self.order)
            self.epoch = epoch
        start = self.order[place] * self.seq_length
        return self.tokens[start : start + self.seq_length + 1].long()


class TextBytes(TextTokens):
    """The bytes of a text as its tokens."""

    def __init__(self, text: bytes, seed: int, seq_length: int) -> None:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        super().__init__(tokens, text_digest(text), seed, seq_length)


def _tokenized_text(point: Point, tokenizer: str) -> TextTokens:
    tokens = tokenized(point.data.path, load_tokenizer(tokenizer))
    problem = too_short(len(tokens), "tokens", point.model.seq_length)
    if problem is not None:
        raise ValueError(problem)
    digest = text_digest(find_text(point.data.path).read_bytes() + Path(tokenizer).read_bytes())
    ids = torch.tensor(tokens, dtype=torch.int32)
    return TextTokens(ids, digest, point.training.seed, point.model.seq_length)


def open_source(point: Point) -> Source:
    """The token source that a point names.

    Raises:
        ValueError: a file cannot be found or used.
    """
    seed, model, data = point.training.seed, point.model, point.data
    if data.source == "text" and data.tokenizer is not None:
        return _tokenized_text(point, data.tokenizer)
    if data.source == "text":
        return TextBytes(find_text(data.path).read_bytes(), seed, model.seq_length)
    if data.source == "megatron":
        return MegatronTokens(data.path, seed, model.seq_length, model.vocab_size)
    return SyntheticTokens(seed, model.vocab_size, model.seq_length)


def _held_out(point: Point) -> Point:
    """The point as far as its tokens go, with the held-out ones: those at `data.validation`, or another seed's."""
    if point.data.source == "synthetic":
        seed = point.training.seed ^ HELD_OUT_SEED
        return point.model_copy(update={"training": point.training.model_copy(update={"seed": seed})})
    return point.model_copy(update={"data": point.data.model_copy(update={"path": point.data.validation})})


class Batches:
    """The microbatches of one data-parallel rank."""

    def __init__(self, point: Point, data_index: int, device: torch.device, held_out: bool = False) -> None:
        """With `held_out`, microbatches of the tokens kept for evaluation, without dropout."""
        self.source = open_source(_held_out(point) if held_out else point)
        self.point, self.data_index, self.device = point, data_index, device
        self.rate = 0.0 if held_out else point.model.dropout

    def microbatch(self, iteration: int, index: int) -> Microbatch:
        """Microbatch `index` of this rank in an iteration; tokens and targets are [s, b]."""
        training = self.point.training
        b = training.microbatch
        place = (self.data_index * self.point.microbatches + index) * b
        numbers = tuple(iteration * training.global_batch + place + j for j in range(b))
        tokens = torch.stack([self.source.sequence(number) for number in numbers], dim=1).to(self.device)
        in_batch = tuple(range(place, place + b))
        dropout = Dropout(self.rate, training.seed, iteration, in_batch)
        return Microbatch(tokens[:-1].contiguous(), tokens[1:].contiguous(), dropout)
