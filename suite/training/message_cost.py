"""What a pipeline message costs on this host while every rank sends one: what is real of an emulated iteration."""

import statistics
import time
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist

from suite.pipeline.lowering import Message
from suite.pipeline.program import FORWARD, Action
from suite.pipeline.transport import Transport

ROUNDS = 25
_APART = 0.02  # seconds between rounds: as long as an action, so that everything has cooled down as it does then


class MessageCost(NamedTuple):
    """Medians over ranks and rounds, in seconds."""

    send: float  # in which the sender does nothing else
    arrival: float  # from the start of sending until the receiver has the message


def message_cost(transport: Transport) -> MessageCost | None:
    """Send a message along the pipeline, from every rank at once; all ranks of the group call this and get the same.

    None where there is only one rank. The clock is the host's, which all its processes share.
    """
    group = transport.group
    if group.size == 1:
        return None
    first, last = group.index == 0, group.index == group.size - 1
    tensor = torch.zeros(transport.shape, dtype=transport.dtype, device=transport.device)
    sends, arrivals = [], []
    start = torch.tensor([perf_counter() + 3 * _APART], dtype=torch.float64)
    dist.broadcast(start, group.ranks[0], group=group.handle)
    for number in range(ROUNDS):
        moment = start.item() + _APART * number
        coming, going = _message(number, group.index - 1), _message(number, group.index)
        if not first:
            transport.receive(coming)
        time.sleep(max(0.0, moment - perf_counter()))
        begin = perf_counter()
        if not last:
            transport.send(going, tensor)
        sent = perf_counter()
        if not first:
            transport.take(coming)
            arrivals.append(perf_counter() - moment)
        if not last:
            transport.settle(going)
            sends.append(sent - begin)
    transport.bytes_sent = 0
    everyone: list[tuple[list[float], list[float]]] = [([], [])] * group.size
    dist.all_gather_object(everyone, (sends, arrivals), group=group.handle)
    return MessageCost(*(statistics.median(value for own in everyone for value in own[kind]) for kind in (0, 1)))


def _message(number: int, source: int) -> Message:
    """An activation of a microbatch for the next rank."""
    return Message(number, Action(FORWARD, source, number), Action(FORWARD, source + 1, number), source, source + 1)
