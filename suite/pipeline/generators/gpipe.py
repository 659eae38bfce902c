"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""

from suite.pipeline.generators.columns import column, linear
from suite.pipeline.program import BACKWARD, FORWARD, Schedule


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Bubble (p-1)(F+B+W); every rank holds the activations of all m microbatches."""
    programs = tuple(
        (*column(FORWARD, rank, range(microbatches)), *column(BACKWARD, rank, range(microbatches)))
        for rank in range(stages)
    )
    return Schedule("gpipe", stages, microbatches, 1, (linear(stages),), programs)
