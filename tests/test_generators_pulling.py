"""V-Min, V-Half and V-ZB by the paper's steps taken literally: every candidate slot tried, every peak counted anew."""

from collections.abc import Callable

import pytest
from schedules import built

from suite.pipeline.generators import pulling
from suite.pipeline.program import Action

Slots = dict[int, tuple[str, int, int]]  # one rank's slots: kind, chunk, microbatch


def block(name: str, p: int, r: int) -> dict[tuple[str, int], int]:
    """The slot of microbatch 0's F and B of chunks 0 and 1 on rank r."""
    if name == "v-min":
        d = 2 if p % 3 == 0 else 0
        slots = (r, 2 * p - 1 - r, 2 * p + d + r, 4 * p + d - 1 - r)
    elif name == "v-half":
        d = 3 if p % 2 == 0 else 0
        slots = (2 * r, 3 * p - 2 - r, 3 * p + d - 1 + 2 * r, 6 * p + d - 2 - r)
    else:
        slots = (4 * r, 6 * p - 5 - 2 * r, 6 * p - 4 + 4 * r, 12 * p - 9 - 2 * r)
    return dict(zip([("F", 0), ("F", 1), ("B", 1), ("B", 0)], slots, strict=True))


def before(kind: str, chunk: int, r: int, p: int) -> tuple[str, int, int] | None:
    """Kind, chunk and rank of what the action waits for."""
    if kind == "W":
        return "B", chunk, r
    at_turn = {("F", 0): r == 0, ("F", 1): r == p - 1, ("B", 1): r == 0, ("B", 0): r == p - 1}[kind, chunk]
    if not at_turn:
        return kind, chunk, r + (1 if (kind, chunk) in (("F", 1), ("B", 0)) else -1)
    return {("F", 0): None, ("F", 1): ("F", 0, r), ("B", 1): ("F", 1, r), ("B", 0): ("B", 1, r)}[kind, chunk]


def peak(slots: Slots) -> int:
    live = most = 0
    for slot in sorted(slots):
        live += {"F": 1, "B": 0, "W": -1}[slots[slot][0]]
        most = max(most, live)
    return most


def peak_with_weights_in_idle_slots(slots: Slots) -> int:
    live = most = pending = 0
    for slot in range(max(slots) + 1):
        kind = slots[slot][0] if slot in slots else None
        if kind is None and pending:
            pending, live = pending - 1, live - 1
        pending += kind == "B"
        live += kind == "F"
        most = max(most, live)
    return most


def pull(ranks: list[Slots], cap: int, peak_of: Callable[[Slots], int]) -> None:
    """Move every action, by increasing slot, to the first free slot after what it waits for that keeps the cap."""
    p, ends = len(ranks), {}
    for slot, r in sorted((slot, rank) for rank in range(p) for slot in ranks[rank]):
        kind, chunk, i = action = ranks[r].pop(slot)
        needed = before(kind, chunk, r, p)
        earliest = max(0 if needed is None else ends[(*needed, i)], ends.get((kind, chunk, r, i - 1), 0))
        for candidate in range(earliest, slot + 1):
            if candidate not in ranks[r] and (candidate == slot or peak_of({**ranks[r], candidate: action}) <= cap):
                break
        ranks[r][candidate] = action
        ends[kind, chunk, r, i] = candidate + 1


def squeezed(ranks: list[Slots]) -> list[Slots]:
    p, ends, clocks = len(ranks), {}, [0] * len(ranks)
    result: list[Slots] = [{} for _ in ranks]
    for slot, r in sorted((slot, rank) for rank in range(p) for slot in ranks[rank]):
        kind, chunk, i = ranks[r][slot]
        needed = before(kind, chunk, r, p)
        start = max(clocks[r], 0 if needed is None else ends[(*needed, i)])
        result[r][start] = kind, chunk, i
        ends[kind, chunk, r, i] = clocks[r] = start + 1
    return result


def literal(name: str, p: int, m: int) -> tuple[tuple[Action, ...], ...]:
    ranks: list[Slots] = []
    for r in range(p):
        slots = {first + 6 * i: (*what, i) for what, first in block(name, p, r).items() for i in range(m)}
        for slot in sorted(slot for slot, (kind, _, _) in slots.items() if kind == "B"):
            free = next(later for later in range(slot + 1, slot + 7) if later not in slots)
            slots[free] = ("W", *slots[slot][1:])
        ranks.append(slots)
    cap = max(map(peak, ranks))
    pull(ranks, cap, peak)
    ranks = [{slot: a for slot, a in slots.items() if a[0] != "W"} for slots in squeezed(ranks)]
    pull(ranks, cap, peak_with_weights_in_idle_slots)
    return tuple(refilled(slots, (r, 2 * p - 1 - r)) for r, slots in enumerate(ranks))


def refilled(slots: Slots, stages: tuple[int, int]) -> tuple[Action, ...]:
    program, pending = [], []
    for slot in range(max(slots) + 1):
        if slot in slots:
            kind, chunk, i = slots[slot]
            program.append(Action(kind, stages[chunk], i))
            pending += [Action("W", stages[chunk], i)] if kind == "B" else []
        elif pending:
            program.append(pending.pop(0))
    return (*program, *pending)


@pytest.mark.parametrize("name", ["v-min", "v-half", "v-zb"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6])
def test_the_lists_are_those_of_the_steps_taken_literally(name, p):
    for m in (1, 2, p, p + 1, 2 * p, 2 * p + 3, 2 * p + 4):
        assert built(name, p, m).programs == literal(name, p, m), m


@pytest.mark.parametrize("name", ["v-min", "v-half", "v-zb"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 21])
def test_repeating_the_cycle_gives_what_all_microbatches_give(name, p, monkeypatch):
    counts = [2 * p + 5, 2 * p + 6, 3 * p + 7]
    short = [built(name, p, m).programs for m in counts]
    monkeypatch.setattr(pulling, "enough", lambda stages: 10**9)
    assert [built(name, p, m).programs for m in counts] == short
