"""The order that a readiness-driven schedule takes if every action and message costs a given time.

The rule is that of `suite.pipeline.ready_engine`: an idle rank starts the action that comes earliest in its hint among
those that are ready; within one kind of action of one stage the hint's order is kept; a forward of the rank's first
chunk starts only while fewer than `cap` microbatches of its replica hold its activations.
"""

from collections import Counter, defaultdict, deque
from dataclasses import replace
from heapq import heappop, heappush

from suite.pipeline.program import FORWARD, RELEASING_KINDS, Action, Schedule, ScheduleError
from suite.pipeline.timeline import Costs, Network


def settled(schedule: Schedule, costs: Costs, network: Network | None = None) -> Schedule:
    """The schedule with a fixed order: its own, or the one that its ranks take at these costs.

    Raises:
        ScheduleError: an action is outside the schedule, on the wrong rank, or there twice; or the ranks lock up, each
            full of microbatches that need another.
    """
    if schedule.cap is None:
        return schedule
    programs = _Race(schedule, costs, network or Network()).run()
    for rank, (hint, ran) in enumerate(zip(schedule.programs, programs, strict=True)):
        if len(ran) < len(hint):
            left = set(hint) - set(ran)
            raise ScheduleError(
                f"{schedule.name} locks up with {schedule.cap} microbatches in flight: rank {rank} cannot run "
                f"{next(action for action in hint if action in left)}; a larger schedule.cap would work, at most the "
                f"{schedule.microbatches} microbatches"
            )
    return replace(schedule, programs=programs, cap=None)


class _Race:
    """All ranks, each starting what is ready."""

    def __init__(self, schedule: Schedule, costs: Costs, network: Network) -> None:
        assert schedule.cap is not None
        self.graph, self.cap, self.network = schedule.graph, schedule.cap, network
        table, graph = costs.table(schedule), self.graph
        self.durations = [table[action.kind, action.stage] for action in graph.actions]
        self.missing = [len(needed) for needed in graph.needs]  # what an action still waits for
        self.followers: dict[int, list[int]] = defaultdict(list)
        for number, needed in enumerate(graph.needs):
            for other in needed:
                self.followers[other].append(number)
        self.streams: list[dict[tuple[str, int, int], deque[int]]] = []
        self.first: list[dict[int, int]] = []  # by rank and replica, the rank's first stage
        for rank in range(len(schedule.programs)):
            streams: dict[tuple[str, int, int], deque[int]] = {}
            for number in range(graph.first[rank], graph.first[rank + 1]):
                action = graph.actions[number]
                streams.setdefault((action.kind, action.stage, action.replica), deque()).append(number)
            self.streams.append(streams)
            stages: dict[int, int] = {}
            for stage, replica in schedule.hosted(rank):
                stages.setdefault(replica, stage)
            self.first.append(stages)
        self.live: list[Counter[int]] = [Counter() for _ in self.streams]  # by rank and replica
        self.free: dict[tuple[int, int], float] = {}  # when a link can take its next message

    def run(self) -> tuple[tuple[Action, ...], ...]:
        """Step from event to event: an action's end, or a message's arrival at what it lets start."""
        graph, ranks = self.graph, range(len(self.streams))
        order: list[list[int]] = [[] for _ in ranks]
        busy = [False] * len(self.streams)
        events: list[tuple[float, int, int]] = []  # time, 0 for an end and 1 for an arrival, action
        idle = set(ranks)
        now = 0.0
        while True:
            for rank in sorted(idle):
                number = None if busy[rank] else self._choose(rank)
                if number is not None:
                    busy[rank] = True
                    order[rank].append(number)
                    heappush(events, (now + self.durations[number], 0, number))
            if not events:
                return tuple(tuple(graph.actions[number] for number in program) for program in order)
            now = events[0][0]
            idle = set()
            while events and events[0][0] == now:
                _, arrival, number = heappop(events)
                rank = graph.rank[number]
                idle.add(rank)
                if arrival:
                    self.missing[number] -= 1
                    continue
                busy[rank] = False
                self._release(number)
                for follower in self.followers[number]:
                    if graph.rank[follower] == rank:
                        self.missing[follower] -= 1
                    else:
                        heappush(events, (self._arrival(rank, graph.rank[follower], now), 1, follower))

    def _choose(self, rank: int) -> int | None:
        """The ready action that comes earliest in the hint, taken from its stream."""
        ready = [
            (stream[0], key)
            for key, stream in self.streams[rank].items()
            if stream and not self.missing[stream[0]] and self._may_enter(rank, stream[0])
        ]
        if not ready:
            return None
        number, key = min(ready)
        self.streams[rank][key].popleft()
        if self._enters(rank, number):
            self.live[rank][self.graph.actions[number].replica] += 1
        return number

    def _enters(self, rank: int, number: int) -> bool:
        action = self.graph.actions[number]
        return action.kind == FORWARD and action.stage == self.first[rank][action.replica]

    def _may_enter(self, rank: int, number: int) -> bool:
        return not self._enters(rank, number) or self.live[rank][self.graph.actions[number].replica] < self.cap

    def _release(self, number: int) -> None:
        rank, action = self.graph.rank[number], self.graph.actions[number]
        if action.kind in RELEASING_KINDS and action.stage == self.first[rank][action.replica]:
            self.live[rank][action.replica] -= 1

    def _arrival(self, source: int, destination: int, now: float) -> float:
        latency, transfer = self.network.between(source, destination)
        begin = max(now, self.free.get((source, destination), 0.0))
        self.free[source, destination] = begin + transfer
        return begin + transfer + latency
