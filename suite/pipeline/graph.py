"""A schedule's actions by number, and what each has to wait for: what the proof, the timeline and the lowering share.

Numbers instead of actions, and arrays of them, because a schedule may have a million and each is looked at many times.
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RECOMPUTE,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    ScheduleError,
)

KINDS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD, RECOMPUTE)
F, B, W, BW, R = range(len(KINDS))

MISSING = -1  # the number of an action that is needed and in no program
NOTHING = -2  # in place of a number, where no action is needed


class Graph:
    """Actions numbered rank by rank in the order of their programs.

    `actions[n]` is the action, `rank[n]` its rank, `first[r]` the number of rank r's first action (with the count of
    all actions at the end), and `needs[n]` the numbers of the actions that have to end before n can start.

    As arrays: `ranks` is `rank`, `kinds[n]` the place of the action's kind in KINDS, `stages[n]` its stage, and
    `numbers[kind, slot]` the number of that kind's action, or MISSING; `table` is the same by kind, replica, slice,
    microbatch and stage. `awaited[n]` is the one action that n may still have to wait for when all before it in its
    program have ended: one of another rank, or one that cannot end before; otherwise NOTHING.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Number the actions.

        Raises:
            ScheduleError: an action is outside the schedule, on a rank that does not host its stage, or there twice.
        """
        self.schedule = schedule
        self.actions: list[Action] = [action for program in schedule.programs for action in program]
        lengths = [len(program) for program in schedule.programs]
        self.first: list[int] = [0, *np.cumsum(lengths, dtype=int).tolist()]
        self.ranks = np.repeat(np.arange(len(lengths)), lengths)
        self.rank: list[int] = self.ranks.tolist()
        self._number()
        self._find_needs()

    def _number(self) -> None:
        schedule = self.schedule
        flat: list[Any] = list(chain.from_iterable(self.actions))
        kinds, *fields = (flat[column :: len(Action._fields)] for column in range(len(Action._fields)))
        places = {kind: place for place, kind in enumerate(KINDS)}
        self.kinds = np.array([places.get(kind, MISSING) for kind in kinds], int)
        stages, microbatches, parts, replicas = columns = [np.array(column, int) for column in fields]
        self.slices = 1 + int(parts.max(initial=0))
        rows = (replicas * self.slices + parts) * schedule.microbatches + microbatches
        self.stages, self._slots = stages, rows * schedule.virtual_stages + stages
        sizes = (schedule.virtual_stages, schedule.microbatches, self.slices, schedule.replicas)
        known = self.kinds != MISSING
        for column, size in zip(columns, sizes, strict=True):
            known &= (column >= 0) & (column < size)
        hosts = np.array(schedule.placement)[np.where(known, replicas, 0), np.where(known, stages, 0)]
        self.numbers = np.full((len(KINDS), np.prod(sizes)), MISSING)
        placed = np.flatnonzero(known & (hosts == self.ranks))
        self.table = self.numbers.reshape(len(KINDS), *sizes[::-1])
        last_first = placed[::-1].copy()  # of equal ones the first stays
        self.numbers[self.kinds[last_first], self._slots[last_first]] = last_first
        placed = placed[self.numbers[self.kinds[placed], self._slots[placed]] == placed]
        if len(placed) < len(known):
            odd = int(np.setdiff1d(np.arange(len(known)), placed)[0])
            raise ScheduleError(self._misplaced(odd, bool(known[odd]), int(hosts[odd])))

    def _misplaced(self, number: int, known: bool, host: int) -> str:
        """Why an action has no place of its own in `numbers`."""
        action, rank = self.actions[number], self.rank[number]
        if action.kind not in KINDS:
            return f"{action} of rank {rank} has an unknown kind; the kinds are {', '.join(KINDS)}"
        if not known:
            return f"{action} of rank {rank} is outside the schedule's stages and microbatches"
        if host != rank:
            return f"{action} is in the program of rank {rank}, but its stage is on rank {host}"
        return f"{action} appears {self.actions.count(action)} times; every action runs exactly once"

    def _find_needs(self) -> None:
        """What each action needs: one of its own stage or, a forward, of the stage before; and one of the stage after.

        Whether the next stage's backward is split (B) or whole (BW) is read from what is there.
        """
        numbers, kinds, slots = self.numbers, self.kinds, self._slots
        inner = (kinds == F) & (self.stages > 0)
        own = np.select(
            [inner, kinds == F, kinds == W], [numbers[F, slots - 1], NOTHING, numbers[B, slots]], numbers[F, slots]
        )
        backward = ((kinds == B) | (kinds == BW)) & (self.stages < self.schedule.virtual_stages - 1)
        after = np.where(backward, slots + 1, slots)
        whole = numbers[BW, after]
        following = np.where(backward, np.where(whole == MISSING, numbers[B, after], whole), NOTHING)
        self._needed = own, following
        self.awaited = np.full(len(slots), NOTHING)
        for needed in (following, own):  # where neither has ended for certain, own is waited for first
            ended = (needed >= 0) & (needed < np.arange(len(slots))) & (self.ranks[np.maximum(needed, 0)] == self.ranks)
            self.awaited = np.where(ended | (needed == NOTHING), self.awaited, needed)

    @cached_property
    def needs(self) -> list[tuple[int, ...]]:
        """The numbers of the actions that have to end before each can start; MISSING for one that is in no program."""
        both = zip(*(needed.tolist() for needed in self._needed), strict=True)
        return [tuple(number for number in pair if number != NOTHING) for pair in both]

    def needed(self, number: int) -> list[Action]:
        """The actions that an action waits for, those that are in no program included."""
        kind, stage, *rest = self.actions[number]
        expected = {
            FORWARD: [(FORWARD, stage - 1)],
            WEIGHT_GRADIENT: [(INPUT_GRADIENT, stage)],
        }.get(kind, [(FORWARD, stage), (INPUT_GRADIENT, stage + 1)])
        names = [Action(k, s, *rest) for k, s in expected]
        return [name if n == MISSING else self.actions[n] for name, n in zip(names, self.needs[number], strict=False)]

    def of_actions(self, table: Mapping[tuple[str, int], float]) -> np.ndarray:
        """What a table by kind and stage has for every action."""
        stages = range(self.schedule.virtual_stages)
        return np.array([[table[kind, stage] for stage in stages] for kind in KINDS])[self.kinds, self.stages]

    @property
    def order(self) -> np.ndarray:
        """All actions in one order that respects every program and every dependency.

        Raises:
            ScheduleError: the programs deadlock; the message names the first action that cannot run.
        """
        return np.argsort(self.whole_times[1], kind="stable")

    @cached_property
    def whole_times(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every action where BW takes 2 and any other 1: whole numbers, so that equal times are equal.

        Raises:
            ScheduleError: the programs deadlock.
        """
        return self.times(np.where(self.kinds == BW, 2.0, 1.0))

    def times(self, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every action, each as early as its program and what it needs allow; messages cost nothing.

        Raises:
            ScheduleError: the programs deadlock.
        """
        ends = np.array(self._ends(durations.tolist()))
        before = np.append(0.0, ends)  # by action, the end of the one before it in its program
        before[self.first] = 0.0
        return np.maximum(before[:-1], np.where(self.awaited == NOTHING, 0.0, ends[np.maximum(self.awaited, 0)])), ends

    def _ends(self, durations: list[float]) -> list[float]:
        """Step through all programs, each rank as far as it gets, until all have ended or none can go on."""
        awaited = self.awaited.tolist()
        waiting: dict[int, int] = {}  # an action that has not ended -> the rank that waits for it
        ends = [-1.0] * len(awaited) + [0.0, -1.0]  # -1: not ended; the last two are those of NOTHING and MISSING
        heads, limits = self.first[:-1], self.first[1:]
        clocks = [0.0] * len(heads)
        runnable = list(range(len(heads)))
        while runnable:
            rank = runnable.pop()
            clock = clocks[rank]
            for number in range(heads[rank], limits[rank]):
                end = ends[awaited[number]]
                if end > clock:
                    clock = end
                elif end < 0:
                    waiting[awaited[number]] = rank
                    break
                ends[number] = clock = clock + durations[number]
                if number in waiting:
                    runnable.append(waiting.pop(number))
            else:
                number = limits[rank]
            heads[rank], clocks[rank] = number, clock
        if heads != limits:
            raise ScheduleError(self._deadlock(heads, [end >= 0 for end in ends]))
        return ends[:NOTHING]

    def _deadlock(self, heads: list[int], done: list[bool]) -> str:
        """Name the stuck action closest to the start of its program, and what it waits for."""
        stuck = [rank for rank, head in enumerate(heads) if head < self.first[rank + 1]]
        rank = min(stuck, key=lambda r: (heads[r] - self.first[r], r))
        number = heads[rank]
        place = next(k for k, other in enumerate(self.needs[number]) if not done[other])
        missing, name = self.needs[number][place], self.needed(number)[place]
        if missing == MISSING:
            why = f"{name} is in no program"
        elif self.rank[missing] == rank:
            why = f"{name} comes later in its own program"
        else:
            holder = self.rank[missing]
            ahead = self.actions[heads[holder]]
            why = f"{name} of rank {holder} cannot run before {ahead}, which is stuck too"
        position = number - self.first[rank]
        return (
            f"schedule {self.schedule.name} deadlocks: rank {rank} cannot run {self.actions[number]} "
            f"(position {position}): {why}"
        )
