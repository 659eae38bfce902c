"""Messages in whatever order they come: a thread per stream receives, and whoever waits is woken by any arrival.

A stream is all messages for one kind of action of one stage, in the order in which their one producer makes them. Its
number is the tag of its messages, which gloo matches; NCCL has no tags.
"""

import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from suite.parallel.topology import Group
from suite.pipeline.program import Action

# A stream listens from the iteration's start, however long its first message takes to be made. That a rank itself waits
# too long is the watchdog's to say; a peer that dies closes its connections, which ends the wait at once.
LISTENING = timedelta(days=365)


class Mailboxes:
    """What has arrived on this rank, and what is being sent."""

    def __init__(self, group: Group, empty: Callable[[], torch.Tensor]) -> None:
        """`empty` makes the tensor that a message is received into."""
        self.group, self.empty = group, empty
        self.arrived: dict[Action, torch.Tensor] = {}  # by the action that consumes it
        self.change = threading.Condition()
        self.error: BaseException | None = None
        self.streams: dict[Hashable, queue.SimpleQueue[Action]] = {}
        self.outgoing: queue.SimpleQueue[tuple[dist.Work, torch.Tensor]] = queue.SimpleQueue()
        self.unsent = 0
        self._start(self._settle)

    def listen(self, source: int, tag: int, consumers: list[Action]) -> None:
        """Expect a message for each of these actions, in this order, from a pipeline rank."""
        if tag not in self.streams:
            self.streams[tag] = queue.SimpleQueue()
            self._start(lambda: self._receive(self.group.ranks[source], tag))
        for consumer in consumers:
            self.streams[tag].put(consumer)

    def send(self, destination: int, tag: int, tensor: torch.Tensor) -> None:
        """Start sending to a pipeline rank; the tensor must not change afterwards."""
        work = dist.isend(tensor, self.group.ranks[destination], group=self.group.handle, tag=tag)
        assert work is not None
        with self.change:
            self.unsent += 1
        self.outgoing.put((work, tensor))

    def wait_for(self, ready: Callable[[Mapping[Action, torch.Tensor]], bool]) -> None:
        """Wait until what has arrived makes `ready` true.

        Raises:
            RuntimeError: a message could not be received or sent.
        """
        with self.change:
            self.change.wait_for(lambda: self.error is not None or ready(self.arrived))
        self._check()

    def take(self, consumer: Action) -> torch.Tensor:
        """Wait for an action's message and hand it over."""
        self.wait_for(lambda arrived: consumer in arrived)
        return self.arrived.pop(consumer)

    def finish(self) -> None:
        """Wait until everything is sent."""
        with self.change:
            self.change.wait_for(lambda: self.error is not None or not self.unsent)
        self._check()

    def _check(self) -> None:
        if self.error is not None:
            raise RuntimeError(f"a message was lost: {self.error}") from self.error

    def _start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                with self.change:
                    self.error = error
                    self.change.notify_all()

        threading.Thread(target=guarded, name="mailbox", daemon=True).start()

    def _receive(self, source: int, tag: int) -> None:
        while True:
            consumer = self.streams[tag].get()
            tensor = self.empty()
            work = dist.irecv(tensor, source, group=self.group.handle, tag=tag)
            assert work is not None
            work.wait(LISTENING)
            with self.change:
                self.arrived[consumer] = tensor
                self.change.notify_all()

    def _settle(self) -> None:
        while True:
            work, _ = self.outgoing.get()
            work.wait()
            with self.change:
                self.unsent -= 1
                self.change.notify_all()
