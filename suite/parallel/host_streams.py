"""Messages between ranks that compute on the processors of one host, through memory that they share.

From each rank to each other one there is a ring of slots, all of one size. The sender copies a message into the next
slot and counts it; the receiver copies it out, in the same order, and counts that. What finds no free slot waits in a
queue of the sender's, which empties while the sender waits for anything: ranks never wait for each other's slots. Bytes
are copied without torch, whose way to a copy takes longer than a small message after the processor has computed.
"""

import ctypes
from collections import defaultdict, deque
from collections.abc import Sequence

import torch

from suite.parallel.host_memory import HostMemory, Layout, share_memory

SLOTS = 8  # messages from one rank to another that are under way; a pipeline has hardly more
MOST_BYTES = 1 << 33  # of addresses for one group's rings; longer messages go through torch's backend


def stream_layout(size: int, message_bytes: int) -> Layout:
    """What the messages among so many ranks need."""
    return Layout(2 * size * size, size * size * SLOTS * message_bytes)


def open_streams(ranks: Sequence[int], like: torch.Tensor) -> "HostStreams | None":
    """Streams for messages like this one among a group's ranks, where all are on one host.

    Every rank of the world calls this, with its own group.
    """
    room = stream_layout(len(ranks), like.nbytes).bytes <= MOST_BYTES
    shared = share_memory({"messages": ranks if room else ()}, lambda size: stream_layout(size, like.nbytes))
    return HostStreams(shared["messages"], like) if shared else None


class HostStreams:
    """The messages that one rank sends and takes; every message is a tensor of one shape and type."""

    def __init__(self, memory: HostMemory, like: torch.Tensor) -> None:
        """`memory` has the layout of `stream_layout` for messages like this one."""
        self.memory = memory
        self.like, self.bytes, self.address = like, like.nbytes, memory.bytes.data_ptr()
        self.queued: dict[int, deque[torch.Tensor]] = defaultdict(deque)  # by destination
        self.written: dict[int, int] = defaultdict(int)
        self.expected: dict[int, int] = defaultdict(int)  # by source
        self.read: dict[int, int] = defaultdict(int)
        self.arrived: dict[tuple[int, int], torch.Tensor] = {}  # by source and number: taken out of their turn

    def send(self, destination: int, tensor: torch.Tensor) -> int:
        """Start to send a contiguous tensor; returns the message's number on its way."""
        queue = self.queued[destination]
        queue.append(tensor)
        self._write(destination)
        return self.written[destination] + len(queue) - 1

    def settle(self, destination: int, number: int) -> None:
        """Wait until the message has been copied, so that its tensor may change."""
        while self.written[destination] <= number:
            free = self.written[destination] - SLOTS + 1
            self.memory.await_count(destination, self._read(self.memory.index, destination), free, self._write_all)
            self._write(destination)

    def expect(self, source: int) -> int:
        """The number of the next message from a rank, in the order of these calls."""
        self.expected[source] += 1
        return self.expected[source] - 1

    def take(self, source: int, number: int) -> torch.Tensor:
        """Wait for a message that is expected, and hand over a tensor of it."""
        while self.read[source] <= number:
            turn = self.read[source]
            self.memory.await_count(source, self._written(source, self.memory.index), turn + 1, self._write_all)
            self.arrived[source, turn] = tensor = torch.empty_like(self.like)
            ctypes.memmove(tensor.data_ptr(), self._slot(source, self.memory.index, turn), self.bytes)
            self.read[source] = turn + 1
            # A sender that has something left for a free slot looks often by itself.
            self.memory.count(self._read(source, self.memory.index), turn + 1, wake=False)
        return self.arrived.pop((source, number))

    def _write_all(self) -> bool:
        """Write what finds a slot now; whether something is left."""
        for destination, queue in self.queued.items():
            if queue:
                self._write(destination)
        return any(self.queued.values())

    def _write(self, destination: int) -> None:
        queue, here = self.queued[destination], self.memory.index
        while queue and self.written[destination] - self.memory.counted(self._read(here, destination)) < SLOTS:
            number = self.written[destination]
            tensor = queue.popleft()  # by name: memory that nobody holds any longer is another's during the copy
            ctypes.memmove(self._slot(here, destination, number), tensor.data_ptr(), self.bytes)
            self.written[destination] = number + 1
            self.memory.count(self._written(here, destination), number + 1)

    def _slot(self, source: int, destination: int, number: int) -> int:
        """The address that a message is copied to."""
        ring = source * self.memory.size + destination
        return self.address + (ring * SLOTS + number % SLOTS) * self.bytes

    def _written(self, source: int, destination: int) -> int:
        return 2 * (source * self.memory.size + destination)

    def _read(self, source: int, destination: int) -> int:
        return self._written(source, destination) + 1
