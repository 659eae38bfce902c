"""When every action runs if each kind costs a given time and messages cost nothing."""

from dataclasses import dataclass
from typing import NamedTuple

from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RECOMPUTE,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)


@dataclass(frozen=True)
class Costs:
    """Time of F, B and W of one microbatch on one rank's whole share of the model; a chunk costs 1/v of it."""

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0

    def by_kind(self, chunks: int) -> dict[str, float]:
        """The cost of one action of each kind."""
        return {
            FORWARD: self.forward / chunks,
            INPUT_GRADIENT: self.input_gradient / chunks,
            WEIGHT_GRADIENT: self.weight_gradient / chunks,
            BACKWARD: (self.input_gradient + self.weight_gradient) / chunks,
            RECOMPUTE: self.forward / chunks,
        }


class Span(NamedTuple):
    """One action's place in time on its rank."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Spans of a whole iteration, one list per rank, in the order of the program."""

    ranks: tuple[tuple[Span, ...], ...]

    def _work(self, rank: int) -> float:
        return sum(span.end - span.start for span in self.ranks[rank])

    @property
    def work(self) -> float:
        """Busy time of the busiest rank."""
        return max(self._work(rank) for rank in range(len(self.ranks)))

    @property
    def makespan(self) -> float:
        """First start to last end over all ranks: what one timed iteration shows."""
        return max(spans[-1].end for spans in self.ranks) - min(spans[0].start for spans in self.ranks)

    @property
    def bubble_makespan(self) -> float:
        """Idle time of one iteration on its own: makespan less the work of the busiest rank."""
        return self.makespan - self.work

    @property
    def bubble_span(self) -> float:
        """Idle time that iterations chained without a barrier pay: the largest gap inside one rank's own span."""
        return max(spans[-1].end - spans[0].start - self._work(rank) for rank, spans in enumerate(self.ranks))

    @property
    def bubble_over_ideal(self) -> float:
        """The makespan's bubble relative to the work of the busiest rank (the paper's section 2.2.1)."""
        return self.bubble_makespan / self.work


def timeline(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Start every action as early as its program and its dependencies allow.

    Raises:
        ScheduleError: the schedule deadlocks.
    """
    cost = (costs or Costs()).by_kind(schedule.chunks)
    ends: dict[Action, float] = {}
    clocks = [0.0] * len(schedule.programs)
    spans: list[list[Span]] = [[] for _ in schedule.programs]
    for action in schedule.order:
        rank = schedule.rank_of(action)
        start = clocks[rank]
        for needed in schedule.dependencies[action]:
            start = max(start, ends[needed])
        end = start + cost[action.kind]
        ends[action] = clocks[rank] = end
        spans[rank].append(Span(rank, action, start, end))
    return Timeline(tuple(tuple(row) for row in spans))
