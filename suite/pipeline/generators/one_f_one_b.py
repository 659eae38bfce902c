"""1F1B with a flush, PipeDream-Flush (Narayanan et al. 2021, section 2.2.1 and figure 4 top)."""

from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Bubble (p-1)(F+B+W), as GPipe; rank r holds at most min(p-r, m) microbatches' activations."""
    programs = tuple(_program(rank, stages, microbatches) for rank in range(stages))
    return Schedule("1f1b", stages, microbatches, 1, (tuple(range(stages)),), programs)


def _program(rank: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    warmup = min(stages - 1 - rank, microbatches)
    actions = [Action(FORWARD, rank, i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        actions += [Action(FORWARD, rank, warmup + i), Action(BACKWARD, rank, i)]
    actions += [Action(BACKWARD, rank, i) for i in range(microbatches - warmup, microbatches)]
    return tuple(actions)
