"""The order in which ranks work that always start the best action which is ready: the list scheduler's core."""

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


def greedy_programs(
    placement: tuple[int, ...], microbatches: int, durations: Durations, cap: int
) -> tuple[tuple[Action, ...], ...]:
    """A backward if one is ready, else a forward, else a weight gradient; the oldest microbatch of each.

    Forwards enter a rank's first stage only while fewer than `cap` microbatches are between that forward and what
    frees its activations. As weight gradients run in the order of their B, no other stage of the rank then holds a
    microbatch that the first does not: the cap bounds the rank's whole memory. It cannot lock up: forwards
    of later stages are always let through, so the oldest microbatch can always go on.
    """
    return _Greedy(placement, microbatches, durations, cap).programs()


class _Greedy:
    """Actions are told by their kind and by i * stages + stage, by which the oldest microbatch comes first."""

    def __init__(self, placement: tuple[int, ...], microbatches: int, durations: Durations, cap: int) -> None:
        ranks = max(placement) + 1
        self.placement, self.stages, self.cap = placement, len(placement), cap
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
        self.held = [0] * ranks  # microbatches whose activations the rank's first stage holds

    def programs(self) -> tuple[tuple[Action, ...], ...]:
        """Step from one end of actions to the next, and let every idle rank that it may concern choose."""
        chosen: list[list[tuple[int, str, int]]] = [[] for _ in self.first]
        busy = [False] * len(self.first)
        ending: dict[int, list[tuple[int, str, int]]] = {}
        times: list[int] = []  # heap of the keys of `ending`
        concerned, now = list(range(len(self.first))), 0
        while True:
            for rank in concerned:
                best = None if busy[rank] else self._choose(rank)
                if best is None:
                    continue
                busy[rank] = True
                chosen[rank].append(best)
                end = now + self.cost[best[1]]
                if end not in ending:
                    ending[end] = []
                    heappush(times, end)
                ending[end].append(best)
            if not times:
                return tuple(map(self._program, chosen))
            now = heappop(times)
            concerned = []
            for rank, kind, at in ending.pop(now):
                busy[rank] = False
                concerned.append(rank)
                following = self._end(rank, kind, at)
                if following is not None:
                    concerned.append(following)

    def _program(self, chosen: list[tuple[int, str, int]]) -> tuple[Action, ...]:
        make, stages = tuple.__new__, self.stages  # as in `columns`
        return tuple([make(Action, (kind, at % stages, at // stages, 0, 0)) for _, kind, at in chosen])

    def _choose(self, rank: int) -> tuple[int, str, int] | None:
        if self.backwards[rank]:
            return rank, self.backward_kind, heappop(self.backwards[rank])
        forwards, entering = self.forwards[rank], self.entering[rank]
        if entering and self.held[rank] < self.cap and not (forwards and forwards[0] < entering[0]):
            self.held[rank] += 1
            return rank, FORWARD, entering.popleft()
        if forwards:
            return rank, FORWARD, heappop(forwards)
        return (rank, WEIGHT_GRADIENT, self.weights[rank].popleft()) if self.weights[rank] else None

    def _end(self, rank: int, kind: str, at: int) -> int | None:
        """Note what the action makes ready; returns the rank that this is on, if it is another's."""
        stage = at % self.stages
        if kind == FORWARD:
            if stage + 1 == self.stages:
                heappush(self.backwards[rank], at)
                return None
            following = self.placement[stage + 1]
            if self.first[following] == stage + 1:
                self.entering[following].append(at + 1)
            else:
                heappush(self.forwards[following], at + 1)
            return following
        if kind == INPUT_GRADIENT:
            self.weights[rank].append(at)
        elif stage == self.first[rank]:
            self.held[rank] -= 1
        if kind == WEIGHT_GRADIENT or stage == 0:
            return None
        following = self.placement[stage - 1]
        heappush(self.backwards[following], at - 1)
        return following
