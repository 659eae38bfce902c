"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2 and figure 4 bottom).

Chunk c of rank r is virtual stage c*p + r. Microbatches go through the chunks in groups of N (the paper:
N = p with m a multiple of p; Megatron-LM later allowed other N).
"""

from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def interleaved(stages: int, microbatches: int, chunks: int, group: int | None = None) -> Schedule:
    """Bubble (p-1)(F+B+W)/v for m >= p; rank r holds min(2(p-r-1) + (v-1)N + 1, mv) chunks' activations."""
    size = group or stages
    table = [
        (i, chunk)
        for first in range(0, microbatches, size)
        for chunk in range(chunks)
        for i in range(first, min(first + size, microbatches))
    ]
    programs = tuple(_program(rank, stages, chunks, size, table) for rank in range(stages))
    placement = tuple(stage % stages for stage in range(stages * chunks))
    return Schedule("interleaved", stages, microbatches, chunks, (placement,), programs)


def _program(rank: int, stages: int, chunks: int, group: int, table: list[tuple[int, int]]) -> tuple[Action, ...]:
    forwards = [Action(FORWARD, chunk * stages + rank, i) for i, chunk in table]
    backwards = [Action(BACKWARD, (chunks - 1 - chunk) * stages + rank, i) for i, chunk in table]
    warmup = min(2 * (stages - rank - 1) + (chunks - 1) * group, len(table))
    actions = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        actions += [forward, backward]
    actions += backwards[len(table) - warmup :]
    return tuple(actions)


def allowed_groups(stages: int, microbatches: int) -> list[int]:
    """Group sizes with which the lists are known not to deadlock, smallest first.

    Megatron-LM's rule: p <= N <= m, and the last group (m mod N) is empty or at least p. One group of all
    microbatches (N = m) is always possible, also for m < p.
    """
    sizes = [n for n in range(stages, microbatches) if microbatches % n == 0 or microbatches % n >= stages]
    return [*sizes, microbatches]


def group_rule(stages: int, microbatches: int, group: int | None) -> str | None:
    """Why this group size cannot be used with these sizes, with one that can; None where it can."""
    allowed = allowed_groups(stages, microbatches)
    if (group or stages) in allowed:
        return None
    sizes = ", ".join(str(n) for n in allowed[:3])
    below = microbatches // stages * stages
    multiples = f"{below} or {below + stages}" if below else str(stages)
    if group is None:
        return (
            f"interleaved needs the number of microbatches ({microbatches}) to be a multiple of the pipeline "
            f"size ({stages}); {multiples} microbatches would work, or schedule.group={allowed[0]}"
        )
    return (
        f"schedule.group={group} does not suit {microbatches} microbatches on {stages} pipeline stages: a "
        f"group has at least {stages} microbatches, and so has the last one; schedule.group in [{sizes}] would work"
    )
