"""Schedules as data: actions, the program of each rank, and what an action has to wait for."""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

FORWARD = "F"
INPUT_GRADIENT = "B"
WEIGHT_GRADIENT = "W"
BACKWARD = "BW"
RECOMPUTE = "R"

BACKWARD_KINDS = (BACKWARD, INPUT_GRADIENT)
RELEASING_KINDS = (BACKWARD, WEIGHT_GRADIENT)  # the actions after which a forward's activations are free


class Action(NamedTuple):
    """One compute action of a program.

    `stage` is the global virtual stage. `slice` and `replica` are 0 except for sequence-sliced and
    bidirectional schedules.
    """

    kind: str
    stage: int
    microbatch: int
    slice: int = 0
    replica: int = 0

    def __str__(self) -> str:
        extra = f"/{self.slice}" if self.slice else ""
        return f"{self.kind} {self.stage}.{self.microbatch}{extra}" + "'" * self.replica


@dataclass(frozen=True)
class Schedule:
    """A placement of virtual stages on ranks and, for each rank, its actions in order.

    `placement[replica][stage]` is the rank that hosts that virtual stage of that replica.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    placement: tuple[tuple[int, ...], ...]
    programs: tuple[tuple[Action, ...], ...]

    @property
    def virtual_stages(self) -> int:
        """Stages of the model over all ranks and chunks."""
        return len(self.placement[0])

    def rank_of(self, action: Action) -> int:
        """The rank that hosts the action's stage."""
        return self.placement[action.replica][action.stage]


class ScheduleError(ValueError):
    """A schedule that must not run; the message names the action and why."""


def dependencies(action: Action, actions: Container[Action], last_stage: int) -> list[Action]:
    """The actions that have to end before `action` can start.

    `actions` are all actions of the schedule: whether the next stage's backward is split (B) or whole
    (BW) is read from it.
    """
    kind, stage = action.kind, action.stage
    if kind == FORWARD:
        return [action._replace(stage=stage - 1)] if stage > 0 else []
    if kind == WEIGHT_GRADIENT:
        return [action._replace(kind=INPUT_GRADIENT)]
    forward = action._replace(kind=FORWARD)
    if kind == RECOMPUTE or stage == last_stage:
        return [forward]
    following = action._replace(kind=BACKWARD, stage=stage + 1)
    if following not in actions:
        following = following._replace(kind=INPUT_GRADIENT)
    return [forward, following]


def execution_order(schedule: Schedule) -> list[Action]:
    """All actions in one order that respects every program and every dependency.

    Raises:
        ScheduleError: the programs deadlock; the message names the first action that cannot run.
    """
    last = schedule.virtual_stages - 1
    positions = {action: rank for rank, program in enumerate(schedule.programs) for action in program}
    waiting: dict[Action, int] = {}  # a missing action -> the rank that waits for it
    order: list[Action] = []
    done: set[Action] = set()
    heads = [0] * len(schedule.programs)
    runnable = list(range(len(schedule.programs)))
    while runnable:
        rank = runnable.pop()
        program = schedule.programs[rank]
        while heads[rank] < len(program):
            action = program[heads[rank]]
            missing = next((d for d in dependencies(action, positions, last) if d not in done), None)
            if missing is not None:
                waiting[missing] = rank
                break
            done.add(action)
            order.append(action)
            heads[rank] += 1
            if action in waiting:
                runnable.append(waiting.pop(action))
    stuck = [rank for rank, head in enumerate(heads) if head < len(schedule.programs[rank])]
    if stuck:
        raise ScheduleError(_deadlock(schedule, stuck, heads, positions, done))
    return order


def _deadlock(
    schedule: Schedule,
    stuck: list[int],
    heads: list[int],
    positions: dict[Action, int],
    done: set[Action],
) -> str:
    """Name the stuck action closest to the start of its program, and follow what it waits for."""
    rank = min(stuck, key=lambda r: (heads[r], r))
    action = schedule.programs[rank][heads[rank]]
    needed = dependencies(action, positions, schedule.virtual_stages - 1)
    missing = next(d for d in needed if d not in done)
    if missing not in positions:
        why = f"{missing} is in no program"
    else:
        holder = positions[missing]
        ahead = schedule.programs[holder][heads[holder]]
        why = (
            f"{missing} comes later in its own program"
            if holder == rank
            else f"{missing} of rank {holder} cannot run before {ahead}, which is stuck too"
        )
    return f"schedule {schedule.name} deadlocks: rank {rank} cannot run {action} (position {heads[rank]}): {why}"
