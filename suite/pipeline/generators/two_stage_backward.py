"""2BP: any schedule with its backward in two parts, the weight gradients run where a rank would idle, else at the end
(Rae et al. 2024, arXiv:2405.18047)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from suite.pipeline.program import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule
from suite.pipeline.timeline import Costs, Span, timeline


def two_stage_backward(base: Schedule) -> Schedule:
    """`base` with every BW as B and W. "Idle" is what a timeline at F=B=W leaves idle, so no other action is delayed.

    At F=B=W the bubble is 2(p-1) of a microbatch's F on GPipe and p-1 on 1F1B, as ZB-H1's. Nothing limits how far W
    stays behind: the peak may rise to all m microbatches on a rank (ZB-H1 has a limit).
    """
    split = replace(
        base,
        name=f"2bp-{base.name}",
        programs=tuple(
            tuple(_of_kind(INPUT_GRADIENT, action) if action.kind == BACKWARD else action for action in program)
            for program in base.programs
        ),
    )
    unit = float(base.chunks)  # an action of any kind then takes one slot
    times = timeline(split, Costs(unit, unit, unit))
    return replace(split, programs=tuple(_filled(spans) for spans in times.ranks))


def _filled(spans: Sequence[Span]) -> tuple[Action, ...]:
    """A rank's program with the oldest pending W in every idle slot."""
    program: list[Action] = []
    pending: deque[Action] = deque()
    clock = 0.0
    for _, action, start, end in spans:
        while pending and clock < start:
            program.append(pending.popleft())
            clock += 1
        program.append(action)
        clock = end
        if action.kind == INPUT_GRADIENT:
            pending.append(_of_kind(WEIGHT_GRADIENT, action))
    return (*program, *pending)


def _of_kind(kind: str, action: Action) -> Action:
    return Action(kind, *action[1:])
