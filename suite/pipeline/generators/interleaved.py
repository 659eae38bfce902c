"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2 and figure 4 bottom).

Chunk c of rank r is virtual stage c*p + r. Microbatches go through the chunks in groups of N (the paper:
N = p with m a multiple of p; Megatron-LM later allowed other N).
"""

from itertools import chain, islice

from suite.pipeline.generators.columns import column, loop
from suite.pipeline.generators.one_f_one_b import alternating
from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def interleaved(stages: int, microbatches: int, chunks: int, group: int | None = None) -> Schedule:
    """Bubble (p-1)(F+B+W)/v for m >= p; rank r holds min(2(p-r-1) + (v-1)N + 1, mv) chunks' activations.

    For m < p (then N = m) the bubble is (F+B+W)/v * (p-1 + (v-1)(p-m)).
    """
    size = group or stages

    def program(rank: int) -> tuple[Action, ...]:
        mine = range(rank, stages * chunks, stages)
        return alternating(
            in_groups([column(FORWARD, stage, range(microbatches)) for stage in mine], size),
            in_groups([column(BACKWARD, stage, range(microbatches)) for stage in reversed(mine)], size),
            warmup=min(2 * (stages - rank - 1) + (chunks - 1) * size, microbatches * chunks),
        )

    programs = tuple(program(rank) for rank in range(stages))
    return Schedule("interleaved", stages, microbatches, chunks, (loop(stages, chunks),), programs)


def in_groups(columns: list[list[Action]], size: int) -> list[Action]:
    """One column per chunk, merged: the first `size` microbatches through all chunks, then the next."""
    order: list[Action] = []
    for first in range(0, len(columns[0]), size):
        for actions in columns:
            order += actions[first : first + size]
    return order


def suits(group: int, stages: int, microbatches: int) -> bool:
    """Whether the lists of this group size are known not to deadlock.

    Megatron-LM's rule: p <= N <= m, and the last group (m mod N) is empty or at least p. One group of all
    microbatches (N = m) is always possible, also for m < p.
    """
    last = microbatches % group
    return group == microbatches or (stages <= group < microbatches and (last == 0 or last >= stages))


def allowed_groups(stages: int, microbatches: int, most: int = 100) -> list[int]:
    """The smallest group sizes that suit, at most so many, in ascending order."""
    sizes = chain(range(stages, microbatches), [microbatches])
    return list(islice((size for size in sizes if suits(size, stages, microbatches)), most))


def group_rule(name: str, stages: int, microbatches: int, group: int | None) -> str | None:
    """Why this group size cannot be used with these sizes, with one that can; None where it can."""
    if suits(group or stages, stages, microbatches):
        return None
    allowed = allowed_groups(stages, microbatches, most=3)
    below = microbatches // stages * stages
    multiples = f"{below} or {below + stages}" if below else str(stages)
    if group is None:
        return (
            f"{name} needs the number of microbatches ({microbatches}) to be a multiple of the pipeline "
            f"size ({stages}); {multiples} microbatches would work, or schedule.group={allowed[0]}"
        )
    sizes = ", ".join(str(size) for size in allowed)
    return (
        f"schedule.group={group} does not suit {microbatches} microbatches on {stages} pipeline stages: a "
        f"group has at least {stages} microbatches, and so has the last one; schedule.group in [{sizes}] would work"
    )
