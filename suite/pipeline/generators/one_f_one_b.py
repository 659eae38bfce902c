"""1F1B with a flush, PipeDream-Flush (Narayanan et al. 2021, section 2.2.1 and figure 4 top)."""

from itertools import chain

from suite.pipeline.generators.columns import column, linear
from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Bubble (p-1)(F+B+W), as GPipe; rank r holds at most min(p-r, m) microbatches' activations."""
    programs = tuple(
        alternating(
            column(FORWARD, rank, range(microbatches)),
            column(BACKWARD, rank, range(microbatches)),
            warmup=min(stages - 1 - rank, microbatches),
        )
        for rank in range(stages)
    )
    return Schedule("1f1b", stages, microbatches, 1, (linear(stages),), programs)


def alternating(forwards: list[Action], backwards: list[Action], warmup: int) -> tuple[Action, ...]:
    """`warmup` forwards, then one forward and one backward in turn, then the remaining backwards."""
    turns = chain.from_iterable(zip(forwards[warmup:], backwards, strict=False))
    return (*forwards[:warmup], *turns, *backwards[len(forwards) - warmup :])
