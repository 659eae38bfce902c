"""What generators build programs from: the actions of one kind and stage, and where stages live."""

from collections.abc import Iterable
from itertools import repeat

from suite.pipeline.program import Action


def column(kind: str, stage: int, microbatches: Iterable[int], replica: int = 0) -> list[Action]:
    """The actions of one kind and stage, in the order of `microbatches`."""
    # What Action(...) ends in, at a fraction of its time: a schedule has up to millions.
    fields = zip(repeat(kind), repeat(stage), microbatches, repeat(0), repeat(replica))
    return list(map(tuple.__new__, repeat(Action), fields))


def linear(stages: int) -> tuple[int, ...]:
    """Stage s on rank s."""
    return tuple(range(stages))


def loop(stages: int, chunks: int) -> tuple[int, ...]:
    """Stage s on rank s mod p: every chunk goes through the ranks in the same direction."""
    return tuple(stage % stages for stage in range(stages * chunks))


def zigzag(stages: int, chunks: int) -> tuple[int, ...]:
    """Chunks go through the ranks there and back: at each turn two stages in a row are on one rank. V for 2 chunks."""
    there_and_back = (*range(stages), *reversed(range(stages)))
    return tuple(there_and_back[stage % (2 * stages)] for stage in range(stages * chunks))
