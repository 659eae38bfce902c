"""Schedules as data: actions, the program of each rank, and what an action has to wait for."""

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

FORWARD = "F"
INPUT_GRADIENT = "B"
WEIGHT_GRADIENT = "W"
BACKWARD = "BW"
RECOMPUTE = "R"

MOST_ACTIONS = 2_000_000  # of one schedule: forwards and backwards, 2 * stages * chunks * microbatches

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


Key = tuple[str, int, int, int, int]  # an action's fields


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

    @cached_property
    def dependencies(self) -> dict[Action, list[Action]]:
        """For every action of the programs, the actions that have to end before it can start.

        They are the programs' own objects, which dictionaries find fastest.
        """
        known: dict[Key, Action] = {action: action for program in self.programs for action in program}
        last = self.virtual_stages - 1
        return {
            action: [known.get(key) or Action(*key) for key in _needed(action, known, last)]
            for action in known.values()
        }

    @cached_property
    def order(self) -> list[Action]:
        """All actions in one order that respects every program and every dependency.

        Raises:
            ScheduleError: the programs deadlock; the message names the first action that cannot run.
        """
        return _order(self)

    def rank_of(self, action: Action) -> int:
        """The rank that hosts the action's stage."""
        return self.placement[action.replica][action.stage]


class ScheduleError(ValueError):
    """A schedule that must not run; the message names the action and why."""


def _needed(action: Action, known: Container[Key], last_stage: int) -> list[Key]:
    """The keys of the actions that have to end before `action` can start.

    Whether the next stage's backward is split (B) or whole (BW) is read from what is known.
    """
    kind, stage, i, part, replica = action
    if kind == FORWARD:
        return [(FORWARD, stage - 1, i, part, replica)] if stage > 0 else []
    if kind == WEIGHT_GRADIENT:
        return [(INPUT_GRADIENT, stage, i, part, replica)]
    forward = (FORWARD, stage, i, part, replica)
    if kind == RECOMPUTE or stage == last_stage:
        return [forward]
    following = (BACKWARD, stage + 1, i, part, replica)
    if following not in known:
        following = (INPUT_GRADIENT, stage + 1, i, part, replica)
    return [forward, following]


def _order(schedule: Schedule) -> list[Action]:
    """Step through all programs, each rank as far as it gets, until all have ended or none can go on."""
    dependencies = schedule.dependencies
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
            needed = dependencies[action]
            if not done.issuperset(needed):
                waiting[next(missing for missing in needed if missing not in done)] = rank
                break
            done.add(action)
            order.append(action)
            heads[rank] += 1
            if action in waiting:
                runnable.append(waiting.pop(action))
    stuck = [rank for rank, head in enumerate(heads) if head < len(schedule.programs[rank])]
    if stuck:
        raise ScheduleError(_deadlock(schedule, stuck, heads, done))
    return order


def _deadlock(schedule: Schedule, stuck: list[int], heads: list[int], done: Container[Action]) -> str:
    """Name the stuck action closest to the start of its program, and follow what it waits for."""
    rank = min(stuck, key=lambda r: (heads[r], r))
    action = schedule.programs[rank][heads[rank]]
    missing = next(needed for needed in schedule.dependencies[action] if needed not in done)
    if missing not in schedule.dependencies:
        why = f"{missing} is in no program"
    else:
        holder = next(rank for rank, program in enumerate(schedule.programs) if missing in program)
        ahead = schedule.programs[holder][heads[holder]]
        why = (
            f"{missing} comes later in its own program"
            if holder == rank
            else f"{missing} of rank {holder} cannot run before {ahead}, which is stuck too"
        )
    return f"schedule {schedule.name} deadlocks: rank {rank} cannot run {action} (position {heads[rank]}): {why}"


def forward_only(schedule: Schedule) -> Schedule:
    """The schedule's forwards in their order, for evaluation."""
    programs = tuple(tuple(action for action in program if action.kind == FORWARD) for program in schedule.programs)
    return replace(schedule, name=f"{schedule.name}, forward only", programs=programs)
