"""The event simulation: when every action runs if each costs a given time, and what messages cost between ranks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from suite.pipeline.collection import no_collection
from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RECOMPUTE,
    RELEASING_KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)

if TYPE_CHECKING:
    import numpy as np

    from suite.pipeline.graph import Graph


@dataclass(frozen=True)
class Costs:
    """Time of F, B and W of one microbatch on one rank's whole share of the model; a chunk costs 1/v of it.

    `stages` are costs of single actions by (kind, virtual stage), where they are known better.
    """

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0
    stages: Mapping[tuple[str, int], float] = field(default_factory=dict)

    @property
    def are_equal(self) -> bool:
        """Whether F, B and W take the same time everywhere."""
        return not self.stages and self.forward == self.input_gradient == self.weight_gradient

    def by_kind(self, chunks: int) -> dict[str, float]:
        """The cost of one action of each kind where no stage has its own."""
        return {
            FORWARD: self.forward / chunks,
            INPUT_GRADIENT: self.input_gradient / chunks,
            WEIGHT_GRADIENT: self.weight_gradient / chunks,
            BACKWARD: (self.input_gradient + self.weight_gradient) / chunks,
            RECOMPUTE: self.forward / chunks,
        }

    def table(self, schedule: Schedule) -> dict[tuple[str, int], float]:
        """The cost of every kind of action on every virtual stage."""
        by_kind = self.by_kind(schedule.chunks)
        stages = range(schedule.virtual_stages)
        return {(kind, stage): cost for kind, cost in by_kind.items() for stage in stages} | dict(self.stages)


@dataclass(frozen=True)
class Link:
    """One direction between two ranks: seconds before the first byte arrives, and bytes per second after it."""

    latency: float = 0.0
    bandwidth: float = float("inf")


@dataclass(frozen=True)
class Network:
    """What a message of `message_bytes` costs. A link carries one message at a time; its latency is not occupied.

    With `overlap` ranks compute while messages travel. Without, a transfer takes the time of both ranks as well: the
    sender goes on when the message is out, and the receiver begins to take it when it has nothing before it.
    `links` are directed pairs of ranks that differ from `link`.
    """

    message_bytes: float = 0.0
    link: Link = Link()
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    overlap: bool = True

    def between(self, source: int, destination: int) -> tuple[float, float]:
        """Latency and transfer time of a message, in seconds."""
        link = self.links.get((source, destination), self.link)
        return link.latency, self.message_bytes / link.bandwidth


class Span(NamedTuple):
    """One action's place in time on its rank."""

    rank: int
    action: Action
    start: float
    end: float


class Transfer(NamedTuple):
    """One message's place in time: from the start of its transfer to its arrival."""

    producer: Action
    consumer: Action
    source: int
    destination: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Spans of a whole iteration, one list per rank, in the order of the program; with a network also its transfers."""

    ranks: tuple[tuple[Span, ...], ...]
    transfers: tuple[Transfer, ...] = ()

    @cached_property
    def _works(self) -> list[float]:
        return [sum([span[3] - span[2] for span in row]) for row in self.ranks]

    @property
    def work(self) -> float:
        """Busy time of the busiest rank."""
        return max(self._works)

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
        return max(spans[-1].end - spans[0].start - work for spans, work in zip(self.ranks, self._works, strict=True))

    @property
    def bubble_over_ideal(self) -> float:
        """The makespan's bubble relative to the work of the busiest rank (the paper's section 2.2.1)."""
        return self.bubble_makespan / self.work

    def live_chunks(self, rank: int) -> list[tuple[float, int]]:
        """Memory over time: the moments at which the rank's live activations change, and their number in chunks.

        A forward's activations live from its start to the end of its whole backward or weight gradient.
        """
        changes: dict[float, int] = {}
        for span in self.ranks[rank]:
            if span.action.kind == FORWARD:
                changes[span.start] = changes.get(span.start, 0) + 1
            elif span.action.kind in RELEASING_KINDS:
                changes[span.end] = changes.get(span.end, 0) - 1
        live, history = 0, []
        for moment in sorted(changes):
            live += changes[moment]
            history.append((moment, live))
        return history


def timeline(schedule: Schedule, costs: Costs | None = None, network: Network | None = None) -> Timeline:
    """Start every action as early as its program, its dependencies and, where there is a network, its message allow.

    Raises:
        ScheduleError: the schedule deadlocks.
    """
    graph, costs = schedule.graph, costs or Costs()
    transfers: tuple[Transfer, ...] = ()
    with no_collection():
        if network is None and costs.are_equal:
            starts, ends = (costs.forward / schedule.chunks * moments for moments in graph.whole_times)
        else:
            durations = graph.of_actions(costs.table(schedule))
            if network is None:
                starts, ends = graph.times(durations)
            else:
                starts, ends, transfers = _with_network(graph, durations, network)
        spans = _tuples(Span, graph.rank, graph.actions, starts.tolist(), ends.tolist())
        ranks = tuple(spans[low:high] for low, high in pairwise(graph.first))
    return Timeline(ranks, transfers)


def _with_network(
    graph: "Graph", durations: "np.ndarray", network: Network
) -> tuple["np.ndarray", "np.ndarray", tuple[Transfer, ...]]:
    """Starts, ends and transfers. All messages of a directed link come from one rank, in the order of its program."""
    import numpy as np  # here, as are graphs: `suite plan` starts without it

    from suite.pipeline.graph import NOTHING

    order, ranks, size = graph.order, graph.ranks, len(graph.first)
    consumers = np.flatnonzero(graph.awaited != NOTHING)
    producers = graph.awaited[consumers]
    pairs, links = np.unique(ranks[producers] * size + ranks[consumers], return_inverse=True)
    costs = [network.between(*divmod(pair, size)) for pair in pairs.tolist()]
    consumer, link_of = np.full((2, len(order)), NOTHING)  # by action, the one that its message goes to, and how
    consumer[producers], link_of[producers] = consumers, links
    overlap, taking = network.overlap, np.zeros(len(order))  # by action, what it costs its rank to take its message
    if not overlap:
        taking[consumers] = np.array([transfer for _, transfer in costs])[links]
    begun, ended, out = [], [], []  # in `order`: of actions, and of the transfers of their messages
    arrivals, clocks, free = [0.0] * len(order), [0.0] * size, [0.0] * len(costs)
    columns = (order, ranks[order], durations[order], taking[order], consumer[order], link_of[order])
    for number, rank, duration, take, destined, link in zip(*(column.tolist() for column in columns), strict=True):
        start = clocks[rank] + take
        if arrivals[number] > start:
            start = arrivals[number]
        clocks[rank] = end = start + duration
        begun.append(start)
        ended.append(end)
        if destined != NOTHING:
            latency, transfer = costs[link]
            begin = end if end > free[link] else free[link]
            free[link] = gone = begin + transfer
            if not overlap:
                clocks[rank] = gone
            arrivals[destined] = gone + latency
            out.append(begin)
    starts, ends, begins = np.zeros((3, len(order)))
    starts[order], ends[order], begins[order[consumer[order] != NOTHING]] = begun, ended, out
    senders = np.flatnonzero(consumer != NOTHING)
    receivers = consumer[senders]
    transfers = _tuples(
        Transfer,
        map(graph.actions.__getitem__, senders.tolist()),
        map(graph.actions.__getitem__, receivers.tolist()),
        ranks[senders].tolist(),
        ranks[receivers].tolist(),
        begins[senders].tolist(),
        np.array(arrivals)[receivers].tolist(),
    )
    return starts, ends, transfers


_Row = TypeVar("_Row", Span, Transfer)


def _tuples(kind: type[_Row], *columns: Iterable[object]) -> tuple[_Row, ...]:
    """Named tuples from their columns, made without a call for each."""
    return tuple(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))


def critical_path(schedule: Schedule, times: Timeline) -> list[Span]:
    """The chain of actions that decides the makespan, from its first to its last.

    Each action of it starts when the one before has ended, on its own rank or (with its message) on another.
    """
    graph = schedule.graph
    spans = [span for row in times.ranks for span in row]
    arrivals = {transfer.consumer: transfer.end for transfer in times.transfers}
    number = max(range(len(spans)), key=lambda n: spans[n].end)
    chain = [spans[number]]
    while True:
        rank, start = spans[number].rank, spans[number].start
        before = [number - 1] if number > graph.first[rank] else []
        arrival = arrivals.get(spans[number].action)
        ready = {
            other: spans[other].end if arrival is None or graph.rank[other] == rank else arrival
            for other in (*before, *graph.needs[number])
        }
        if start <= 0 or not ready:
            return chain[::-1]
        # Without overlap an action may start later than anything ended: when its rank had sent, or taken its message.
        decisive = [other for other, moment in ready.items() if moment == start] or before
        number = max(decisive)
        chain.append(spans[number])
