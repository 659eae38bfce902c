"""Memory that the ranks of one host share, and how they wait in it for each other.

gloo takes every byte through sockets, whose copies and threads take their time from the very processors that compute.
Here a rank writes what others are to read, and then counts: each counter is counted up by one rank, and awaited by any.
"""

import ctypes
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

WAIT_SECONDS = 1800.0  # gloo's own default; a watchdog ends a launch that stands still long before

_LINE = 64 // 4  # a cache line, in counters: every counter has one of its own
_SPIN_SECONDS = 30e-6  # what a rank waits for usually comes at once, and being woken up takes as long
_SHORT_SECONDS = 1e-3  # between two looks at what else is to be done
_LOOK_SECONDS = 1.0  # after which a sleeping rank looks whether the others are still there

_FUTEX = {"x86_64": 202}  # elsewhere what was written could become visible after the count that announces it
_WAIT, _WAKE = 0, 1


class Layout(NamedTuple):
    """What a group's memory holds: so many counters, and so many bytes after them."""

    counters: int
    bytes: int

    @property
    def head(self) -> int:
        """Bytes of the counters, in whole pages."""
        return -(-self.counters * _LINE * 4 // 4096) * 4096

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.head + self.bytes


class _Offer(NamedTuple):
    """What a rank tells all others before they share memory."""

    host: str | None  # equal for processes that can open each other's files; None: this one shares nothing
    process: int
    files: dict[tuple[str, tuple[int, ...]], int]  # open files of the groups whose first rank it is


def share_memory(groups: Mapping[str, Sequence[int]], layout: Callable[[int], Layout]) -> dict[str, "HostMemory"]:
    """Memory for those of this rank's groups whose ranks are all on one host; every rank of the world calls this.

    `groups` are the ranks by name. The names are the same everywhere, the ranks those of this rank's own group.
    `layout` says what a group of so many ranks needs; pages that nobody writes to take no memory.
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
                    os.ftruncate(files[key], layout(len(ranks)).total)
        offers = _from_everyone(_Offer(host, os.getpid(), files))
        for key, ranks in own.items():
            members = [offers[other] for other in ranks]
            file = members[0].files.get(key)
            if host is None or file is None or {member.host for member in members} != {host}:
                continue
            path = f"/proc/{members[0].process}/fd/{file}"
            with suppress(OSError, RuntimeError):  # another user's process, or a name space of files of its own
                processes = [member.process for member in members]
                found[key[0]] = HostMemory(path, list(ranks).index(rank), processes, layout(len(ranks)))
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
    """One group's shared memory, as one of its ranks sees it: `bytes` [layout.bytes], and counters that begin at 0."""

    def __init__(self, path: str, index: int, processes: Sequence[int], layout: Layout) -> None:
        """`path` is a file of `layout.total` zero bytes that every rank of the group maps.

        `index` is this rank's place in the group, `processes` are the process ids of all.
        """
        self.index, self.processes = index, processes
        everything = torch.from_file(path, shared=True, size=layout.total, dtype=torch.uint8)
        self.bytes = everything[layout.head :]
        self.counters: memoryview = everything[: layout.head].view(torch.int32).numpy().data
        self.address = everything.data_ptr()
        self.syscall = ctypes.CDLL(None).syscall
        whole, place = ctypes.c_int, ctypes.c_void_p
        self.syscall.argtypes = (ctypes.c_long, place, whole, whole, place, place, whole)
        self.number = _FUTEX[platform.machine()]

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.processes)

    def counted(self, counter: int) -> int:
        """How far a counter has come."""
        return int(self.counters[counter * _LINE])

    def count(self, counter: int, value: int, wake: bool = True) -> None:
        """Set a counter of this rank, and wake who waits for it; `wake` is false where others look by themselves."""
        place = counter * _LINE
        self.counters[place] = value
        if wake:
            self.syscall(self.number, self.address + 4 * place, _WAKE, 1 << 30, None, None, 0)

    def await_count(self, rank: int, counter: int, value: int, meanwhile: Callable[[], bool] | None = None) -> None:
        """Wait until a counter of another rank has come so far.

        `meanwhile` is done again and again while it says that it is needed.

        Raises:
            ConnectionError: the rank is gone.
            TimeoutError: it does not come.
        """
        place, begin = counter * _LINE, perf_counter()
        pause = _LOOK_SECONDS
        while (seen := self.counters[place]) < value:
            waited = perf_counter() - begin
            if meanwhile is not None:
                pause = _SHORT_SECONDS if meanwhile() else _LOOK_SECONDS
            if waited < _SPIN_SECONDS:
                continue
            if waited > WAIT_SECONDS:
                raise TimeoutError(f"waited {waited:.0f} s for rank {rank} of a group of {self.size}")
            if waited > _LOOK_SECONDS:
                self._look_for(rank)
            limit = _Time(int(pause), int(pause % 1 * 1e9))
            self.syscall(self.number, self.address + 4 * place, _WAIT, seen, ctypes.byref(limit), None, 0)

    def _look_for(self, rank: int) -> None:
        try:
            os.kill(self.processes[rank], 0)
        except ProcessLookupError:
            raise ConnectionError(f"rank {rank} of a group of {self.size} is gone") from None


class _Time(ctypes.Structure):
    """The kernel's timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))
