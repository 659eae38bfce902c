"""Messages between pipeline ranks: preposted receives, sends that overlap compute, bytes counted."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from suite.parallel.host_streams import HostStreams
from suite.parallel.topology import ALONE, Group
from suite.pipeline.lowering import Message


class Transport:
    """Point-to-point messages over one pipeline group; every message is one tensor of the same shape and type.

    Each pair of ranks is an in-order stream (the lowering gives both ends the same order), so no tags are
    needed. A started send or receive is kept until it has been waited for exactly once.

    With `scatter` (the paper's scatter/gather optimisation, section 4.1) a message is the same on all ranks of that
    tensor group: each sends its 1/t share to its peer, and the receivers gather the shares among themselves.
    """

    def __init__(
        self,
        group: Group,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        scatter: Group = ALONE,
    ) -> None:
        self.streams: HostStreams | None = None  # of ranks that share a host's memory, instead of torch's backend
        self.group, self.shape, self.dtype, self.device, self.scatter = group, shape, dtype, device, scatter
        self.share = math.prod(shape) // scatter.size
        self.receiving: dict[Message, Callable[[], torch.Tensor]] = {}  # what waits for it
        self.sending: dict[Message, Callable[[], object]] = {}
        self.bytes_sent = 0

    def receive(self, message: Message) -> None:
        """Post the receive."""
        if self.streams is not None:
            number = self.streams.expect(message.source)
            self.receiving[message] = partial(self.streams.take, message.source, number)
            return
        tensor = self.empty()
        work = dist.irecv(tensor, self.group.ranks[message.source], group=self.group.handle)
        self.receiving[message] = partial(_received, _started(work), tensor)

    def take(self, message: Message) -> torch.Tensor:
        """Wait for a posted receive and hand its tensor over."""
        return self.whole(self.receiving.pop(message)())

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start sending; the tensor must not change until the message is settled."""
        tensor = self.share_of(message, tensor)
        if self.streams is not None:
            number = self.streams.send(message.destination, tensor)
            self.sending[message] = partial(self.streams.settle, message.destination, number)
            return
        work = dist.isend(tensor, self.group.ranks[message.destination], group=self.group.handle)
        self.sending[message] = partial(_sent, _started(work), tensor)

    def empty(self) -> torch.Tensor:
        """What a message is received into."""
        shape = self.shape if self.scatter.size == 1 else (self.share,)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A received message, put together from the tensor ranks' shares where each got one."""
        return tensor if tensor.shape == self.shape else self.scatter.all_gather(tensor).view(self.shape)

    def share_of(self, message: Message, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank sends of a message; counted as sent."""
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            raise RuntimeError(
                f"the {message} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but both ends agreed on "
                f"{self.shape} and {self.dtype}"
            )
        if self.scatter.size > 1:
            tensor = tensor.contiguous().view(self.scatter.size, -1)[self.scatter.index]
        self.bytes_sent += tensor.nbytes
        return tensor.contiguous()

    def settle(self, message: Message) -> None:
        """Wait for a send and let go of its tensor."""
        self.sending.pop(message)()


def _started(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this rank is not part of the pipeline group it sends in")
    return work


def _received(work: dist.Work, tensor: torch.Tensor) -> torch.Tensor:
    work.wait()
    return tensor


def _sent(work: dist.Work, tensor: torch.Tensor) -> None:
    """Wait; the tensor is kept until then."""
    work.wait()
