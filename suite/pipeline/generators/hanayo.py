"""Hanayo: waves, chunks that go through the ranks there and back (Liu et al. 2023, arXiv:2308.15762)."""

from suite.pipeline.generators.columns import zigzag
from suite.pipeline.generators.greedy import Durations, greedy_programs
from suite.pipeline.program import Schedule


def hanayo(stages: int, microbatches: int, chunks: int) -> Schedule:
    """w = v/2 waves, of one copy of the model."""
    placement = zigzag(stages, chunks)
    programs = greedy_programs(placement, microbatches, Durations(forward=1, backward=1), cap=stages)
    return Schedule("hanayo", stages, microbatches, chunks, (placement,), programs)
