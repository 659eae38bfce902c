"""Collectives of ranks that compute on the processors of one host, in memory that they share.

Every operation of a group is carried out in the order in which it was started, which is the same on all ranks. Each
rank counts the parts that it has posted and those that it has read, and has two slots to post into: part n goes into
slot n mod 2 once everybody has read part n - 2. Sums are made in the order of the ranks, so that all get the same bits.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from suite.parallel.host_memory import HostMemory, Layout

SLOT_BYTES = 1 << 23  # the largest part
CHUNK_BYTES = 1 << 20  # of an operation in several parts: what a processor's cache keeps until the others have read it

_POSTED, _READ = 0, 1  # a rank's counters

Part = tuple[torch.Tensor, Callable[[Sequence[torch.Tensor]], None]]  # what to post; what to do with what all posted


def collective_layout(size: int) -> Layout:
    """What the collectives of so many ranks need."""
    return Layout(2 * size, size * 2 * SLOT_BYTES)


class HostCollectives:
    """One group's collectives, as one of its ranks sees them."""

    def __init__(self, memory: HostMemory) -> None:
        """`memory` has the layout of `collective_layout`."""
        self.memory, self.size = memory, memory.size
        self.slots = memory.bytes.view(memory.size, 2, SLOT_BYTES)
        self.others = [rank for rank in range(memory.size) if rank != memory.index]
        self.next = 0  # the number of the next part
        self.unfinished: deque[Operation] = deque()

    def start(self, parts: Sequence[Part]) -> "Operation":
        """Start an operation. Its first part is posted at once where nothing else is under way and there is room."""
        operation = Operation(self, parts)
        self.unfinished.append(operation)
        if len(self.unfinished) == 1 and all(
            self.memory.counted(2 * rank + _READ) >= self.next - 1 for rank in self.others
        ):
            operation.post()
        return operation

    def post(self, number: int, tensor: torch.Tensor) -> None:
        """Show a part to the others, once its slot is free."""
        self._await(_READ, number - 1)
        self._slot(self.memory.index, number, tensor).copy_(tensor)
        self.memory.count(2 * self.memory.index + _POSTED, number + 1)

    def posted(self, number: int, like: torch.Tensor) -> list[torch.Tensor]:
        """Wait for what every rank has posted as this part, each of this shape and type; in the order of the ranks."""
        self._await(_POSTED, number + 1)
        return [self._slot(rank, number, like) for rank in range(self.size)]

    def have_read(self, number: int) -> None:
        """Say that what the others posted as this part is no longer needed here."""
        self.memory.count(2 * self.memory.index + _READ, number + 1)

    def _slot(self, rank: int, number: int, like: torch.Tensor) -> torch.Tensor:
        return self.slots[rank, number % 2, : like.nbytes].view(like.dtype).view(like.shape)

    def _await(self, word: int, value: int) -> None:
        for rank in self.others:
            self.memory.await_count(rank, 2 * rank + word, value)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> "Operation":
        """Start to add up, or to take the largest of, all ranks' tensors in place. Raises ValueError for other ops."""
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            raise ValueError(f"{op}: ranks that share memory sum or take the largest")
        combine = torch.add if op == dist.ReduceOp.SUM else torch.maximum
        flat = tensor.view(-1)
        parts = [flat[start:stop] for start, stop in _spans(flat.numel(), flat.itemsize)]
        return self.start([(part, _combined(part, combine)) for part in parts])

    def all_gather(self, whole: torch.Tensor, tensor: torch.Tensor) -> "Operation":
        """Start to put all ranks' tensors one after another into `whole`; all are contiguous."""
        rows = whole.view(self.size, -1)
        flat = tensor.view(-1)

        def gathered(start: int, stop: int) -> Callable[[Sequence[torch.Tensor]], None]:
            def take(parts: Sequence[torch.Tensor]) -> None:
                for row, part in zip(rows, parts, strict=True):
                    row[start:stop].copy_(part)

            return take

        spans = _spans(flat.numel(), flat.itemsize)
        return self.start([(flat[start:stop], gathered(start, stop)) for start, stop in spans])

    def reduce_scatter(self, share: torch.Tensor, tensor: torch.Tensor) -> "Operation":
        """Start to add up all ranks' tensors, of which `share` gets this rank's piece; both are contiguous."""
        rows = tensor.view(self.size, -1)
        flat = share.view(-1)

        def summed(start: int, stop: int) -> Callable[[Sequence[torch.Tensor]], None]:
            add = _combined(flat[start:stop], torch.add)
            return lambda parts: add([part[self.memory.index] for part in parts])

        spans = _spans(flat.numel(), flat.itemsize * len(rows))
        return self.start([(rows[:, start:stop], summed(start, stop)) for start, stop in spans])


class Operation:
    """A collective that was started; it is done once it has been waited for."""

    def __init__(self, collectives: HostCollectives, parts: Sequence[Part]) -> None:
        self.collectives, self.parts = collectives, deque(parts)
        self.number: int | None = None  # of the part that is posted

    def post(self) -> None:
        """Post the next part."""
        self.number = self.collectives.next
        self.collectives.next += 1
        self.collectives.post(self.number, self.parts[0][0])

    def wait(self) -> None:
        """Finish it, and all that were started before.

        Raises ConnectionError where a rank is gone, TimeoutError where one does not come.
        """
        queue = self.collectives.unfinished
        while self.parts:
            queue[0]._finish()
            queue.popleft()

    def _finish(self) -> None:
        while self.parts:
            if self.number is None:
                self.post()
            number, self.number = self.number, None
            assert number is not None
            tensor, take = self.parts.popleft()
            take(self.collectives.posted(number, tensor))
            self.collectives.have_read(number)


def _combined(out: torch.Tensor, combine: Callable[..., torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], None]:
    def take(parts: Sequence[torch.Tensor]) -> None:
        combine(parts[0], parts[1], out=out)
        for part in parts[2:]:
            combine(out, part, out=out)

    return take


def _spans(count: int, itemsize: int) -> list[tuple[int, int]]:
    """`count` elements whole where they fit into a slot, and otherwise in chunks."""
    step = count if count * itemsize <= SLOT_BYTES else CHUNK_BYTES // itemsize
    return [(start, min(start + step, count)) for start in range(0, count, step)] if count else [(0, 0)]
