"""Training samples from Megatron's `.bin`/`.idx` files, in the order in which Megatron's GPT data set has them.

The rule, for a file with T tokens, sequence length s and seed r:

- *Documents.* An epoch is every sequence of the index once, in an order shuffled with the epoch's random numbers. (A
  sequence is a document, unless the documents were cut up when the file was written; Megatron's GPT shuffles
  sequences too.) The epochs' documents, one after another without anything between them, are one endless stream.
- *Samples.* Sample i is the s + 1 tokens of the stream from place i * s on, so that neighbours share a token and every
  token of the stream but the first is predicted once. Sample i belongs to the first epoch with which the stream is
  long enough for it; it may begin at the end of the epoch before.
- *Order.* An epoch's samples are shuffled among themselves with the same random numbers, drawn after the documents'.
- *Random numbers.* `numpy.random.RandomState(r)` for the first epoch, `RandomState([r, e])` for epoch e after it.

A run within one epoch so sees what Megatron shows it with all documents in the training split. Over several epochs
Megatron first asks how many samples the run will take, shuffles the documents of all epochs together, and keeps the
last epoch apart where less than 80 % of it is needed. Here every epoch is kept apart: which tokens sequence n has must
not depend on how long the run is, or it could not be continued.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch

from suite.experiment.data_digest import megatron_digest
from suite.experiment.megatron_file import open_megatron


@dataclass(frozen=True)
class _Epoch:
    """One epoch: its documents in order, where each ends (tokens of this epoch), and its samples in order."""

    documents: np.ndarray  # [sequences]
    ends: np.ndarray  # [sequences]
    first: int  # the number of its first sample
    samples: np.ndarray  # [samples of this epoch], counted from `first`


class MegatronTokens:
    """Samples of a `.bin`/`.idx` pair by number. The tokens stay on disk, the orders of two epochs in memory."""

    def __init__(self, path: str | None, seed: int, seq_length: int, vocab_size: int) -> None:
        """`path` is what the two names have in common, or either name.

        Raises:
            ValueError: the files are missing, damaged or too short, or the seed is too large.
        """
        self.file = open_megatron(path, seq_length, seed)
        self.seed, self.seq_length, self.vocab_size = seed, seq_length, vocab_size
        self._epoch = lru_cache(maxsize=2)(self._shuffled)  # a sample may reach back into the epoch before its own

    def sequence(self, number: int) -> torch.Tensor:
        """Tokens [s + 1] of the sample with this number.

        Raises:
            ValueError: a token id is not below the model's vocabulary.
        """
        s = self.seq_length
        epoch = self._epoch((number + 1) * s // self.file.tokens)
        start = (epoch.first + int(epoch.samples[number - epoch.first])) * s
        tokens = self._stream(start, s + 1)
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            wrong, works = (low, "a file without negative ids") if low < 0 else (high, f"model.vocab_size={high + 1}")
            raise ValueError(
                f"data.path: {self.file.bin}: sequence number {number} has the token id {wrong}, which is not in a "
                f"vocabulary of model.vocab_size={self.vocab_size}; {works} would work"
            )
        return torch.from_numpy(tokens)

    @cached_property
    def digest(self) -> str:
        """A short hash of the files."""
        return megatron_digest(self.file.bin, self.file.idx)

    def _shuffled(self, number: int) -> _Epoch:
        tokens, s = self.file.tokens, self.seq_length
        numbers = np.random.RandomState([self.seed, number] if number else self.seed)
        documents = np.arange(len(self.file.lengths))
        numbers.shuffle(documents)
        ends = np.cumsum(self.file.lengths[documents], dtype=np.int64)
        first = max(0, (number * tokens - 1) // s)
        samples = np.arange(((number + 1) * tokens - 1) // s - first)
        numbers.shuffle(samples)
        return _Epoch(documents, ends, first, samples)

    def _stream(self, start: int, count: int) -> np.ndarray:
        """Tokens [count], int64, of the endless stream from place `start` on."""
        found = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            number, place = divmod(start + filled, self.file.tokens)
            epoch = self._epoch(number)
            index = int(np.searchsorted(epoch.ends, place, side="right"))
            document = epoch.documents[index]
            left = int(epoch.ends[index]) - place
            take = min(left, count - filled)
            start_of_document = int(self.file.places[document]) // self.file.ids.itemsize
            begin = start_of_document + int(self.file.lengths[document]) - left
            found[filled : filled + take] = self.file.ids[begin : begin + take]
            filled += take
        return found
