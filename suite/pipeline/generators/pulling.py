"""From a building block on a V of two chunks per rank to lists: repeated, pulled forward under the block's memory,
and weight gradients filled in (Qi et al. 2024, arXiv:2405.15362, section 4).

A microbatch passes 4p *places*: the forwards of the 2p stages, then their input gradients from the last stage to the
first; each place waits for the one before. The weight gradients are the places from 4p on, each 2p after its
input gradient's. Time goes in slots, one action long. The microbatches pass a place in their order, so that an action
is told by its place alone, and `passed[place]` has the slots of the microbatches that have passed so far, after a -1.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence

PERIOD = 6  # slots between two microbatches: F, B and W of two chunks

Visits = list[list[int]]  # by slot: the places that a microbatch passes then


def orders(block: list[int], stages: int, microbatches: int) -> list[list[int]]:
    """For every rank the places of its actions in order, from the slot of microbatch 0 at each of the first 4p places.

    1. Repeat the block and put each W into the first free slot after its B. 2. Pull every action forward as far as
    dependencies, free slots and the peak allow. 3. Let each rank's order start as soon as it can. 4. Take the W out and
    pull again, where an idle slot counts as a W if one is pending. 5. Fill the idle slots with the oldest W.

    Of more microbatches than `enough`, only the cycle that all ranks are in by then is repeated.
    """
    fewer = enough(stages)
    if microbatches > fewer:
        shorter = orders(block, stages, fewer)
        return [_lengthened(order, rank, microbatches - fewer) for rank, order in enumerate(shorter)]
    line = _Line(stages, microbatches)
    visits = line.repeated(block)
    cap = line.peak(visits)
    visits = line.squeezed(line.pulled(visits, cap))
    return [rank.order() for rank in line.pulled_without_weights(visits, cap)]


def enough(stages: int) -> int:
    """Microbatches that show the whole order: from microbatch 2p on (found by trial for p up to 32), every rank
    repeats one cycle of 6 actions until its last forward of chunk 0."""
    return 2 * stages + 4


def _lengthened(order: list[int], first_place: int, extra: int) -> list[int]:
    """The order with so many more of its last cycle from one forward of chunk 0 to the next."""
    entries = [index for index, place in enumerate(order) if place == first_place]
    start, end = entries[-2:]
    return order[:start] + order[start:end] * extra + order[start:]


class _Line:
    """The places of `stages` ranks."""

    def __init__(self, stages: int, microbatches: int) -> None:
        self.stages = stages
        self.microbatches = microbatches
        self.inputs = 2 * stages  # the first place of a B; also how far that of its W is behind it
        self.weights = 4 * stages  # the first place of a W
        self.ranks = [*range(stages), *reversed(range(stages))] * 3
        self.before = [*range(-1, self.weights - 1), *range(self.inputs, self.weights)]  # what each place waits for

    def repeated(self, block: list[int]) -> Visits:
        """The block every 6 slots, each W in the first free slot of its rank after its B."""
        slots = max(block) + PERIOD * (self.microbatches + 1)
        visits: Visits = [[] for _ in range(slots)]
        busy = [bytearray(slots) for _ in range(self.stages)]
        for place, first in enumerate(block):
            row = busy[self.ranks[place]]
            for slot in range(first, first + PERIOD * self.microbatches, PERIOD):
                visits[slot].append(place)
                row[slot] = 1
        for slot, places in enumerate(visits):
            for place in places:
                if self.inputs <= place < self.weights:
                    row = busy[self.ranks[place]]
                    free = row.find(0, slot + 1)
                    row[free] = 1
                    visits[free].append(place + self.inputs)
        return visits

    def peak(self, visits: Visits) -> int:
        """The most chunks whose activations are alive on a rank."""
        live, most = [0] * self.stages, 0
        for places in visits:
            for place in places:
                if place < self.inputs:
                    live[self.ranks[place]] += 1
                    most = max(most, live[self.ranks[place]])
                elif place >= self.weights:
                    live[self.ranks[place]] -= 1
        return most

    def pulled(self, visits: Visits, cap: int) -> Visits:
        """Every action, in order of slots, in the first free slot that dependencies and the cap leave it."""
        busy = [bytearray(len(visits)) for _ in range(self.stages)]
        takes: list[list[int]] = [[] for _ in range(self.stages)]  # by rank, the slots of forwards in order
        frees: list[list[int]] = [[] for _ in range(self.stages)]  # and of weight gradients
        passed = self._nothing_passed()
        result: Visits = [[] for _ in visits]
        for slot, places in enumerate(visits):
            for place in places:
                rank = self.ranks[place]
                mine = passed[place]
                earliest = max(passed[self.before[place]][len(mine)], mine[-1]) + 1
                if place < self.inputs:
                    earliest = _with_room(takes[rank], frees[rank], cap, earliest, slot)
                found = busy[rank].find(0, earliest)
                busy[rank][found] = 1
                mine.append(found)
                result[found].append(place)
                if place < self.inputs:
                    insort(takes[rank], found)
                elif place >= self.weights:
                    insort(frees[rank], found)
        return result

    def squeezed(self, visits: Visits) -> Visits:
        """The same order on every rank, each action as soon as it can start."""
        clocks = [0] * self.stages
        passed = self._nothing_passed()
        result: Visits = [[] for _ in visits]
        for places in visits:
            for place in places:
                rank = self.ranks[place]
                mine = passed[place]
                start = max(clocks[rank], passed[self.before[place]][len(mine)] + 1)
                clocks[rank] = start + 1
                mine.append(start)
                result[start].append(place)
        return result

    def pulled_without_weights(self, visits: Visits, cap: int) -> "list[_Refilled]":
        """Every F and B in the first idle slot that dependencies and the cap leave it, if idle slots do the W."""
        ranks = [_Refilled(self.inputs, cap) for _ in range(self.stages)]
        passed = self._nothing_passed()
        for slot, places in enumerate(visits):
            for place in places:
                if place < self.weights:
                    mine = passed[place]
                    earliest = max(passed[self.before[place]][len(mine)], mine[-1]) + 1
                    mine.append(ranks[self.ranks[place]].put(place, earliest, slot))
        return ranks

    def _nothing_passed(self) -> list[list[int]]:
        """`passed` at the start. Its last entry, before place 0, is where microbatches come from."""
        return [*([-1] for _ in self.ranks), [-1] * (self.microbatches + 1)]


def _with_room(takes: list[int], frees: list[int], cap: int, earliest: int, latest: int) -> int:
    """The first slot, at or before `latest`, from which one more forward never makes more than `cap` live.

    The k-th forward in time has to come after the (k-cap)-th weight gradient. One more forward makes every
    later one's k larger by one: the last one that has no room for this is the barrier.
    """
    for k in range(len(takes) - 1, cap - 2, -1):
        freed = frees[k + 1 - cap] if k + 1 - cap < len(frees) else latest - 1
        if freed > takes[k]:
            return max(earliest, freed + 1)
        if takes[k] < earliest:
            break
    return earliest


class _Refilled:
    """One rank's slots while F and B are pulled forward and idle slots do the weight gradients.

    `at` has the place in each slot, None where it is idle; `live` and `pending` have the chunks alive and the weight
    gradients to be done before each slot.
    """

    def __init__(self, inputs: int, cap: int) -> None:
        self.inputs = inputs
        self.cap = cap
        self.at: list[int | None] = []
        self.live = [0]
        self.pending = [0]

    def put(self, place: int, earliest: int, latest: int) -> int:
        """Put an action into the first idle slot from `earliest` on that keeps the peak; `latest` always does."""
        end = len(self.at)
        idle = [None] * (latest - end)
        if earliest < latest:
            self._fill(end, idle)
            for slot in range(earliest, latest):
                if self.at[slot] is None and self._fill(slot, [place, *self.at[slot + 1 :]]):
                    return slot
            self._fill(latest, [place])
        else:
            self._fill(end, [*idle, place])
        return latest

    def _fill(self, start: int, places: Sequence[int | None]) -> bool:
        """Have these places from slot `start` on, unless this makes more chunks live than the cap."""
        live, pending = self.live[start], self.pending[start]
        lives, pendings = [], []
        for place in places:
            if place is None:
                if pending:
                    live -= 1
                    pending -= 1
            elif place < self.inputs:
                live += 1
                if live > self.cap:
                    return False
            else:
                pending += 1
            lives.append(live)
            pendings.append(pending)
        self.at[start:] = places
        self.live[start + 1 :] = lives
        self.pending[start + 1 :] = pendings
        return True

    def order(self) -> list[int]:
        """The rank's places with the oldest pending weight gradient in every idle slot and the others at the end."""
        order: list[int] = []
        pending: deque[int] = deque()
        for place in self.at:
            if place is not None:
                order.append(place)
                if place >= self.inputs:
                    pending.append(place + self.inputs)
            elif pending:
                order.append(pending.popleft())
        return [*order, *pending]
