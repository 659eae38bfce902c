"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""

from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Bubble (p-1)(F+B+W); every rank holds the activations of all m microbatches."""
    programs = tuple(
        tuple(Action(kind, rank, i) for kind in (FORWARD, BACKWARD) for i in range(microbatches))
        for rank in range(stages)
    )
    return Schedule("gpipe", stages, microbatches, 1, (tuple(range(stages)),), programs)
