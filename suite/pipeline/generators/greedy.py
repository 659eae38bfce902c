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
    def __init__(self, placement: tuple[int, ...], microbatches: int, durations: Durations, cap: int) -> None:
        ranks = max(placement) + 1
        self.placement = placement
        self.cap = cap
        self.split = durations.weight_gradient is not None
        self.backward_kind = INPUT_GRADIENT if self.split else BACKWARD
        self.cost = {
            FORWARD: durations.forward,
            self.backward_kind: durations.backward,
            WEIGHT_GRADIENT: durations.weight_gradient or 0,
        }
        self.first = [placement.index(rank) for rank in range(ranks)]
        self.entering: list[deque[int]] = [deque() for _ in range(ranks)]  # microbatches ready for the first stage
        self.entering[placement[0]].extend(range(microbatches))
        self.forwards: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]  # heaps of (microbatch, later stage)
        self.backwards: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]  # heaps of (microbatch, stage)
        self.weights: list[deque[Action]] = [deque() for _ in range(ranks)]
        self.held = [0] * ranks  # microbatches whose activations the rank's first stage holds

    def programs(self) -> tuple[tuple[Action, ...], ...]:
        """Step from one end of actions to the next, and let every idle rank that it may concern choose."""
        programs: list[list[Action]] = [[] for _ in self.first]
        busy = [False] * len(self.first)
        ending: dict[int, list[Action]] = {}
        times: list[int] = []  # heap of the keys of `ending`
        concerned, now = list(range(len(self.first))), 0
        while True:
            for rank in concerned:
                action = None if busy[rank] else self._choose(rank)
                if action is None:
                    continue
                busy[rank] = True
                programs[rank].append(action)
                end = now + self.cost[action.kind]
                if end not in ending:
                    ending[end] = []
                    heappush(times, end)
                ending[end].append(action)
            if not times:
                return tuple(tuple(program) for program in programs)
            now = heappop(times)
            concerned = []
            for action in ending.pop(now):
                rank = self.placement[action.stage]
                busy[rank] = False
                concerned.append(rank)
                concerned += self._end(rank, action)

    def _choose(self, rank: int) -> Action | None:
        if self.backwards[rank]:
            i, stage = heappop(self.backwards[rank])
            return Action(self.backward_kind, stage, i)
        forwards, entering = self.forwards[rank], self.entering[rank]
        if entering and self.held[rank] < self.cap and not (forwards and forwards[0][0] < entering[0]):
            self.held[rank] += 1
            return Action(FORWARD, self.first[rank], entering.popleft())
        if forwards:
            i, stage = heappop(forwards)
            return Action(FORWARD, stage, i)
        return self.weights[rank].popleft() if self.weights[rank] else None

    def _end(self, rank: int, action: Action) -> tuple[int, ...]:
        """Note what `action` makes ready; returns the rank that this is on, if it is another's."""
        kind, stage, i, _, _ = action
        if kind == FORWARD:
            if stage + 1 == len(self.placement):
                heappush(self.backwards[rank], (i, stage))
                return ()
            following = self.placement[stage + 1]
            if self.first[following] == stage + 1:
                self.entering[following].append(i)
            else:
                heappush(self.forwards[following], (i, stage + 1))
            return (following,)
        if kind == INPUT_GRADIENT:
            self.weights[rank].append(Action(WEIGHT_GRADIENT, stage, i))
        elif stage == self.first[rank]:
            self.held[rank] -= 1
        if kind == WEIGHT_GRADIENT or stage == 0:
            return ()
        following = self.placement[stage - 1]
        heappush(self.backwards[following], (i, stage - 1))
        return (following,)
