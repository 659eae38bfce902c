"""Schedules as data: actions, and the program of each rank."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from suite.pipeline.graph import Graph

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


@dataclass(frozen=True)
class Schedule:
    """A placement of virtual stages on ranks and, for each rank, its actions in order.

    `placement[replica][stage]` is the rank that hosts that virtual stage of that replica of the weights. A
    microbatch passes all stages of one replica.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    placement: tuple[tuple[int, ...], ...]
    programs: tuple[tuple[Action, ...], ...]
    cap: int | None = None  # the programs are hints, run as their actions become ready, with so many in flight

    @property
    def virtual_stages(self) -> int:
        """Stages of the model over all ranks and chunks."""
        return len(self.placement[0])

    @property
    def replicas(self) -> int:
        """Copies of the weights within one pipeline."""
        return len(self.placement)

    @property
    def splits_backward(self) -> bool:
        """Whether any backward is in two parts, B and W."""
        return any(action.kind == WEIGHT_GRADIENT for program in self.programs for action in program)

    @cached_property
    def graph(self) -> "Graph":
        """The actions by number, with what each waits for.

        Raises:
            ScheduleError: an action is outside the schedule, on the wrong rank, or there twice.
        """
        from suite.pipeline.graph import Graph

        return Graph(self)

    def rank_of(self, action: Action) -> int:
        """The rank that hosts the action's stage."""
        return self.placement[action.replica][action.stage]

    def hosted(self, rank: int) -> list[tuple[int, int]]:
        """The (stage, replica) that the rank holds, by stage."""
        return sorted(
            (stage, replica)
            for replica, hosts in enumerate(self.placement)
            for stage, host in enumerate(hosts)
            if host == rank
        )


class ScheduleError(ValueError):
    """A schedule that must not run; the message names the action and why."""


def forward_only(schedule: Schedule) -> Schedule:
    """The schedule's forwards in their order, for evaluation."""
    programs = tuple(tuple(action for action in program if action.kind == FORWARD) for program in schedule.programs)
    return replace(schedule, name=f"{schedule.name}, forward only", programs=programs, cap=None)
