"""A schedule's actions by number, and what each has to wait for: what the proof, the timeline and the lowering share.

Numbers instead of actions, because a schedule may have a million of them and each is looked at many times.
"""

from functools import cached_property

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

MISSING = -1  # the number of an action that is needed and in no program


class Graph:
    """Actions numbered rank by rank in the order of their programs.

    `actions[n]` is the action, `rank[n]` its rank, `first[r]` the number of rank r's first action (with the count of
    all actions at the end), and `needs[n]` the numbers of the actions that have to end before n can start.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Number the actions.

        Raises:
            ScheduleError: an action is outside the schedule, on a rank that does not host its stage, or there twice.
        """
        self.schedule = schedule
        self.actions: list[Action] = [action for program in schedule.programs for action in program]
        self.rank: list[int] = []
        self.first = [0]
        for rank, program in enumerate(schedule.programs):
            self.rank += [rank] * len(program)
            self.first.append(len(self.rank))
        self.slices = 1 + max((action.slice for action in self.actions), default=0)
        size = schedule.replicas * self.slices * schedule.microbatches * schedule.virtual_stages
        kinds = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD, RECOMPUTE)
        self.numbers: dict[str, list[int]] = {kind: [MISSING] * size for kind in kinds}
        self._number()
        self.needs = self._needs()

    def slot(self, action: Action) -> int:
        """The action's place in the tables of `numbers`, which the other kinds of its stage and microbatch share."""
        _, stage, microbatch, part, replica = action
        schedule = self.schedule
        row = (replica * self.slices + part) * schedule.microbatches + microbatch
        return row * schedule.virtual_stages + stage

    def _number(self) -> None:
        schedule, numbers = self.schedule, self.numbers
        stages, microbatches, replicas = schedule.virtual_stages, schedule.microbatches, schedule.replicas
        placement, ranks, slices = schedule.placement, self.rank, self.slices
        for number, action in enumerate(self.actions):
            kind, stage, microbatch, part, replica = action
            rank = ranks[number]
            table = numbers.get(kind)
            if table is None:
                raise ScheduleError(f"{action} of rank {rank} has an unknown kind; the kinds are {', '.join(numbers)}")
            if not (0 <= stage < stages and 0 <= microbatch < microbatches and 0 <= replica < replicas and part >= 0):
                raise ScheduleError(f"{action} of rank {rank} is outside the schedule's stages and microbatches")
            if placement[replica][stage] != rank:
                host = placement[replica][stage]
                raise ScheduleError(f"{action} is in the program of rank {rank}, but its stage is on rank {host}")
            slot = ((replica * slices + part) * microbatches + microbatch) * stages + stage
            if table[slot] != MISSING:
                times = self.actions.count(action)
                raise ScheduleError(f"{action} appears {times} times; every action runs exactly once")
            table[slot] = number

    def _needs(self) -> list[tuple[int, ...]]:
        """What each action waits for.

        Whether the next stage's backward is split (B) or whole (BW) is read from what is there.
        """
        forward, inputs, whole = (self.numbers[kind] for kind in (FORWARD, INPUT_GRADIENT, BACKWARD))
        stages, microbatches, slices = self.schedule.virtual_stages, self.schedule.microbatches, self.slices
        needs: list[tuple[int, ...]] = []
        for kind, stage, microbatch, part, replica in self.actions:
            slot = ((replica * slices + part) * microbatches + microbatch) * stages + stage
            if kind == FORWARD:
                needs.append((forward[slot - 1],) if stage else ())
            elif kind == WEIGHT_GRADIENT:
                needs.append((inputs[slot],))
            elif kind == RECOMPUTE or stage == stages - 1:
                needs.append((forward[slot],))
            else:
                following = whole[slot + 1]
                needs.append((forward[slot], inputs[slot + 1] if following == MISSING else following))
        return needs

    def needed(self, number: int) -> list[Action]:
        """The actions that an action waits for, those that are in no program included."""
        kind, stage, *rest = self.actions[number]
        expected = {
            FORWARD: [(FORWARD, stage - 1)],
            WEIGHT_GRADIENT: [(INPUT_GRADIENT, stage)],
        }.get(kind, [(FORWARD, stage), (INPUT_GRADIENT, stage + 1)])
        names = [Action(k, s, *rest) for k, s in expected]
        return [name if n == MISSING else self.actions[n] for name, n in zip(names, self.needs[number], strict=False)]

    @property
    def order(self) -> list[int]:
        """All actions in one order that respects every program and every dependency.

        Raises:
            ScheduleError: the programs deadlock; the message names the first action that cannot run.
        """
        return self._walk[0]

    @property
    def whole_times(self) -> tuple[list[float], list[float]]:
        """Start and end of every action where BW takes 2 and any other 1: whole numbers, so that equal times are equal.

        Raises:
            ScheduleError: the programs deadlock.
        """
        return self._walk[1:]

    @cached_property
    def _walk(self) -> tuple[list[int], list[float], list[float]]:
        """Step through all programs, each rank as far as it gets, until all have ended or none can go on."""
        needs, first, actions = self.needs, self.first, self.actions
        waiting: dict[int, int] = {}  # a missing action -> the rank that waits for it
        order: list[int] = []
        starts = [0.0] * len(actions)
        ends = [-1.0] * (len(actions) + 1)  # -1: not done; the last is that of MISSING, which never is
        heads, limits = first[:-1], first[1:]
        clocks = [0.0] * len(heads)
        runnable = list(range(len(heads)))
        while runnable:
            rank = runnable.pop()
            number, limit, start = heads[rank], limits[rank], clocks[rank]
            while number < limit:
                missing = None
                for other in needs[number]:
                    end = ends[other]
                    if end < 0:
                        missing = other
                        break
                    if end > start:
                        start = end
                if missing is not None:
                    waiting[missing] = rank
                    break
                starts[number] = start
                ends[number] = start = start + (2.0 if actions[number][0] == BACKWARD else 1.0)
                clocks[rank] = start
                order.append(number)
                if number in waiting:
                    runnable.append(waiting.pop(number))
                number += 1
            heads[rank] = number
        if len(order) < len(actions):
            raise ScheduleError(self._deadlock(heads, [end >= 0 for end in ends]))
        return order, starts, ends[:-1]

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

    def times(self, durations: list[float]) -> tuple[list[float], list[float]]:
        """Start and end of every action, each as early as its program and what it needs allow; messages cost nothing.

        Raises:
            ScheduleError: the programs deadlock.
        """
        needs, ranks = self.needs, self.rank
        starts, ends = [0.0] * len(durations), [0.0] * len(durations)
        clocks = [0.0] * (len(self.first) - 1)
        for number in self.order:
            rank = ranks[number]
            start = clocks[rank]
            for other in needs[number]:
                if ends[other] > start:
                    start = ends[other]
            starts[number] = start
            ends[number] = clocks[rank] = start + durations[number]
        return starts, ends
