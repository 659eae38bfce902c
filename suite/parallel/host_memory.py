"""Collectives of ranks that compute on the processors of one host, through memory that they share.

gloo takes every byte through sockets, and its threads and the kernel's copies take their time from the very processors
that compute. Here a rank writes its part where the others can read it, says so, and reads theirs.

Every operation of a group is carried out in the order in which it was started, which is the same on all ranks. Each
rank counts the parts that it has posted and those that it has read, and has two slots to post into: part n goes into
slot n mod 2 once everybody has read part n - 2. Sums are made in the order of the ranks, so that all get the same bits.
"""

import ctypes
import os
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

SLOT_BYTES = 1 << 23  # the largest part; what is not written to takes no memory
CHUNK_BYTES = 1 << 20  # of an operation in several parts: what a processor's cache keeps until the others have read it
WAIT_SECONDS = 1800.0  # gloo's own default; a watchdog ends a launch that stands still long before

_LINE = 64 // 4  # a cache line, in counters: every counter has one of its own
_POSTED, _READ = 0, 1
_HEAD_BYTES = 1 << 16
_SPIN_SECONDS = 30e-6  # what a rank waits for usually comes at once, and being woken up takes as long
_LOOK_SECONDS = 1.0  # after which a sleeping rank looks whether the others are still there

_FUTEX = {"x86_64": 202}  # elsewhere a part could become visible after the count that announces it
_WAIT, _WAKE = 0, 1

Part = tuple[torch.Tensor, Callable[[Sequence[torch.Tensor]], None]]  # what to post; what to do with what all posted


class _Offer(NamedTuple):
    """What a rank tells all others before they share memory."""

    host: str | None  # equal for processes that can open each other's files; None: this one shares nothing
    process: int
    files: dict[tuple[str, tuple[int, ...]], int]  # open files of the groups whose first rank it is


def share_memory(groups: Mapping[str, Sequence[int]]) -> dict[str, "HostMemory"]:
    """Memory for those of this rank's groups whose ranks are all on one host; every rank of the world calls this.

    `groups` are the ranks by name. The names are the same everywhere, the ranks those of this rank's own group.
    """
    own = {(name, tuple(ranks)): ranks for name, ranks in groups.items() if len(ranks) > 1}
    rank = dist.get_rank()
    host = this_host()
    files: dict[tuple[str, tuple[int, ...]], int] = {}
    found: dict[str, HostMemory] = {}
    try:
        for key, ranks in own.items():
            with suppress(OSError):  # not allowed here
                if host is not None and ranks[0] == rank:
                    files[key] = os.memfd_create("ranks")
                    os.ftruncate(files[key], bytes_needed(len(ranks)))
        offers = _from_everyone(_Offer(host, os.getpid(), files))
        for key, ranks in own.items():
            members = [offers[other] for other in ranks]
            file = members[0].files.get(key)
            if host is None or file is None or {member.host for member in members} != {host}:
                continue
            path = f"/proc/{members[0].process}/fd/{file}"
            with suppress(OSError, RuntimeError):  # another user's process, or a name space of files of its own
                found[key[0]] = HostMemory(path, list(ranks).index(rank), [member.process for member in members])
        has = _from_everyone({key for key in own if key[0] in found})
    finally:
        for file in files.values():
            os.close(file)
    return {name: found[name] for name, ranks in own if name in found and all((name, ranks) in has[i] for i in ranks)}


def _from_everyone(value: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def this_host() -> str | None:
    """A name for the kernel and the name space of processes that this one runs in; None where nothing can be shared."""
    if platform.machine() not in _FUTEX or not hasattr(os, "memfd_create"):
        return None
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return None


class HostMemory:
    """One group's shared memory, as one of its ranks sees it."""

    def __init__(self, path: str, index: int, processes: Sequence[int]) -> None:
        """`path` is a file of `bytes_needed(len(processes))`, zero at first, that every rank of the group maps."""
        size = len(processes)
        self.index, self.processes = index, processes
        self.memory = torch.from_file(path, shared=True, size=bytes_needed(size), dtype=torch.uint8)
        self.counters: memoryview = self.memory[:_HEAD_BYTES].view(torch.int32).numpy().data
        self.slots = self.memory[_HEAD_BYTES:].view(size, 2, SLOT_BYTES)
        self.others = [rank for rank in range(size) if rank != index]
        self.next = 0  # the number of the next part
        self.unfinished: deque[Operation] = deque()
        libc = ctypes.CDLL(None, use_errno=True)
        self.syscall, self.base = libc.syscall, self.memory.data_ptr()

    def start(self, parts: Sequence[Part]) -> "Operation":
        """Start an operation. Its first part is posted at once where nothing else is under way and there is room."""
        operation = Operation(self, parts)
        self.unfinished.append(operation)
        if len(self.unfinished) == 1 and self._counted(_READ, self.next - 1):
            operation.post()
        return operation

    def post(self, number: int, tensor: torch.Tensor) -> None:
        """Show a part to the others, once its slot is free."""
        self._await(_READ, number - 1)
        self._slot(self.index, number, tensor).copy_(tensor)
        self._count(_POSTED, number + 1)

    def posted(self, number: int, like: torch.Tensor) -> list[torch.Tensor]:
        """Wait for what every rank has posted as this part, each of this shape and type; in the order of the ranks."""
        self._await(_POSTED, number + 1)
        return [self._slot(rank, number, like) for rank in range(len(self.processes))]

    def have_read(self, number: int) -> None:
        """Say that what the others posted as this part is no longer needed here."""
        self._count(_READ, number + 1)

    def _slot(self, rank: int, number: int, like: torch.Tensor) -> torch.Tensor:
        return self.slots[rank, number % 2, : like.nbytes].view(like.dtype).view(like.shape)

    def _counted(self, word: int, count: int) -> bool:
        return all(self.counters[(2 * rank + word) * _LINE] >= count for rank in self.others)

    def _count(self, word: int, count: int) -> None:
        place = (2 * self.index + word) * _LINE
        self.counters[place] = count
        self.syscall(_FUTEX[platform.machine()], self._address(place), _WAKE, 1 << 30, None, None, 0)

    def _await(self, word: int, count: int) -> None:
        for rank in self.others:
            place = (2 * rank + word) * _LINE
            if self.counters[place] < count:
                self._await_one(rank, place, count)

    def _await_one(self, rank: int, place: int, count: int) -> None:
        begin = perf_counter()
        second = _Time(int(_LOOK_SECONDS), 0)
        while (seen := self.counters[place]) < count:
            waited = perf_counter() - begin
            if waited < _SPIN_SECONDS:
                continue
            if waited > WAIT_SECONDS:
                raise TimeoutError(f"waited {waited:.0f} s for rank {rank} of a group of {len(self.processes)}")
            if waited > _LOOK_SECONDS:
                self._look_for(rank)
            self.syscall(_FUTEX[platform.machine()], self._address(place), _WAIT, seen, ctypes.byref(second), None, 0)

    def _look_for(self, rank: int) -> None:
        try:
            os.kill(self.processes[rank], 0)
        except ProcessLookupError:
            raise ConnectionError(f"rank {rank} of a group of {len(self.processes)} is gone") from None

    def _address(self, place: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.base + 4 * place)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> "Operation":
        """Start to add up, or to take the largest of, all ranks' tensors in place. Raises ValueError for other ops."""
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            raise ValueError(f"{op}: ranks that share memory sum or take the largest")
        combine = torch.add if op == dist.ReduceOp.SUM else torch.maximum
        flat = tensor.view(-1)
        return self.start([(part, _combined(part, combine)) for part in _cut(flat)])

    def all_gather(self, whole: torch.Tensor, tensor: torch.Tensor) -> "Operation":
        """Start to put all ranks' tensors one after another into `whole`; all are contiguous."""
        rows = whole.view(len(self.processes), -1)
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
        rows = tensor.view(len(self.processes), -1)
        flat = share.view(-1)

        def summed(start: int, stop: int) -> Callable[[Sequence[torch.Tensor]], None]:
            add = _combined(flat[start:stop], torch.add)
            return lambda parts: add([part[self.index] for part in parts])

        spans = _spans(flat.numel(), flat.itemsize * len(rows))
        return self.start([(rows[:, start:stop], summed(start, stop)) for start, stop in spans])


class Operation:
    """A collective that was started; it is done once it has been waited for."""

    def __init__(self, memory: HostMemory, parts: Sequence[Part]) -> None:
        self.memory, self.parts = memory, deque(parts)
        self.number: int | None = None  # of the part that is posted

    def post(self) -> None:
        """Post the next part."""
        self.number = self.memory.next
        self.memory.next += 1
        self.memory.post(self.number, self.parts[0][0])

    def wait(self) -> None:
        """Finish it, and all that were started before.

        Raises ConnectionError where a rank is gone, TimeoutError where one does not come.
        """
        queue = self.memory.unfinished
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
            take(self.memory.posted(number, tensor))
            self.memory.have_read(number)


class _Time(ctypes.Structure):
    """The kernel's timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def bytes_needed(size: int) -> int:
    """Of the memory of a group of `size` ranks."""
    return _HEAD_BYTES + size * 2 * SLOT_BYTES


def _combined(out: torch.Tensor, combine: Callable[..., torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], None]:
    def take(parts: Sequence[torch.Tensor]) -> None:
        combine(parts[0], parts[1], out=out)
        for part in parts[2:]:
            combine(out, part, out=out)

    return take


def _cut(flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[start:stop] for start, stop in _spans(flat.numel(), flat.itemsize)]


def _spans(count: int, itemsize: int) -> list[tuple[int, int]]:
    """`count` elements whole where they fit into a slot, and otherwise in chunks."""
    step = count if count * itemsize <= SLOT_BYTES else CHUNK_BYTES // itemsize
    return [(start, min(start + step, count)) for start in range(0, count, step)] if count else [(0, 0)]
