"""The order in which ranks work that always start the best action which is ready, under a limit on activations."""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action


@dataclass(frozen=True)
class Durations:
    """Whole units of time that an action of each kind takes. Without W the backward is one action."""

    forward: int
    backward: int
    weight_gradient: int | None = None
    latency: int = 0  # from the end of an action to the arrival of its message on another rank


@dataclass(frozen=True)
class Limit:
    """Whole units of memory: a rank's, what F takes, and what of it B leaves for W."""

    cap: int
    forward: int = 1
    kept: int = 1


def greedy_programs(
    placement: tuple[int, ...], microbatches: int, durations: Durations, limit: Limit
) -> tuple[tuple[Action, ...], ...]:
    """A backward if one is ready, else a forward, else a weight gradient; the oldest microbatch of each.

    Forwards enter a rank's first stage only while the limit has room beside the microbatches between that forward and
    what frees their activations. As weight gradients run in the order of their B, no other stage of the rank then holds
    more than the first: the limit bounds the rank's whole memory. It cannot lock up: forwards of later stages are
    always let through, so the oldest microbatch can always go on.
    """
    return _Greedy(placement, microbatches, durations, limit).programs()


_Start = tuple[int, str, int]  # an action on a rank: its kind, and i * stages + stage, by which the oldest comes first


class _Greedy:
    """Ranks with what is ready on each."""

    def __init__(self, placement: tuple[int, ...], microbatches: int, durations: Durations, limit: Limit) -> None:
        ranks = max(placement) + 1
        self.placement, self.stages, self.limit = placement, len(placement), limit
        self.latency = durations.latency
        self.split = durations.weight_gradient is not None
        self.backward_kind = INPUT_GRADIENT if self.split else BACKWARD
        self.cost = {
            FORWARD: durations.forward,
            self.backward_kind: durations.backward,
            WEIGHT_GRADIENT: durations.weight_gradient or 0,
        }
        self.first = [placement.index(rank) for rank in range(ranks)]
        self.entering: list[deque[int]] = [deque() for _ in range(ranks)]  # forwards that are ready, of the first stage
        self.entering[placement[0]].extend(range(0, microbatches * self.stages, self.stages))
        self.forwards: list[list[int]] = [[] for _ in range(ranks)]  # heaps of those of later stages
        self.backwards: list[list[int]] = [[] for _ in range(ranks)]  # heaps
        self.weights: list[deque[int]] = [deque() for _ in range(ranks)]
        self.held = [0] * ranks  # memory of the rank's first stage
        self.freed = {
            BACKWARD: limit.forward,
            INPUT_GRADIENT: limit.forward - limit.kept,
            WEIGHT_GRADIENT: limit.kept,
        }
        self.ending: dict[int, list[_Start]] = {}  # by moment
        self.arriving: dict[int, list[_Start]] = {}  # the actions whose message is there
        self.times: list[int] = []  # heap of the keys of both

    def programs(self) -> tuple[tuple[Action, ...], ...]:
        """Step from one end or arrival to the next, and let every idle rank that it may concern choose."""
        chosen: list[list[_Start]] = [[] for _ in self.first]
        busy = [False] * len(self.first)
        concerned, now = list(range(len(self.first))), 0
        while True:
            for rank in concerned:
                best = None if busy[rank] else self._choose(rank)
                if best is not None:
                    busy[rank] = True
                    chosen[rank].append(best)
                    self._book(self.ending, now + self.cost[best[1]], best)
            if not self.times:
                return tuple(map(self._program, chosen))
            now = heappop(self.times)
            concerned = []
            for rank, kind, at in self.ending.pop(now, ()):
                busy[rank] = False
                concerned.append(rank)
                following = self._end(rank, kind, at)
                if following is None:
                    continue
                if self.latency and following[0] != rank:
                    self._book(self.arriving, now + self.latency, following)
                else:
                    concerned.append(following[0])
                    self._arrive(*following)
            for rank, kind, at in self.arriving.pop(now, ()):
                concerned.append(rank)
                self._arrive(rank, kind, at)

    def _book(self, events: dict[int, list[_Start]], moment: int, event: _Start) -> None:
        if moment in events:
            events[moment].append(event)
            return
        if moment not in self.ending and moment not in self.arriving:
            heappush(self.times, moment)
        events[moment] = [event]

    def _program(self, chosen: list[_Start]) -> tuple[Action, ...]:
        make, stages = tuple.__new__, self.stages  # as in `columns`
        return tuple([make(Action, (kind, at % stages, at // stages, 0, 0)) for _, kind, at in chosen])

    def _choose(self, rank: int) -> _Start | None:
        if self.backwards[rank]:
            return rank, self.backward_kind, heappop(self.backwards[rank])
        forwards, entering = self.forwards[rank], self.entering[rank]
        room = self.held[rank] + self.limit.forward <= self.limit.cap
        if entering and room and not (forwards and forwards[0] < entering[0]):
            self.held[rank] += self.limit.forward
            return rank, FORWARD, entering.popleft()
        if forwards:
            return rank, FORWARD, heappop(forwards)
        return (rank, WEIGHT_GRADIENT, self.weights[rank].popleft()) if self.weights[rank] else None

    def _end(self, rank: int, kind: str, at: int) -> _Start | None:
        """Note that the action is done; returns what can be done then, and where, if that is not its own W."""
        stage = at % self.stages
        if kind == FORWARD:
            last = stage + 1 == self.stages
            return (rank, self.backward_kind, at) if last else (self.placement[stage + 1], FORWARD, at + 1)
        if stage == self.first[rank]:
            self.held[rank] -= self.freed[kind]
        if kind == INPUT_GRADIENT:
            self.weights[rank].append(at)
        return None if kind == WEIGHT_GRADIENT or stage == 0 else (self.placement[stage - 1], kind, at - 1)

    def _arrive(self, rank: int, kind: str, at: int) -> None:
        if kind != FORWARD:
            heappush(self.backwards[rank], at)
        elif self.first[rank] == at % self.stages:
            self.entering[rank].append(at)
        else:
            heappush(self.forwards[rank], at)
