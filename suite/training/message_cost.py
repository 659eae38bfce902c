"""What a pipeline message costs on this host while every rank sends one: what is real of an emulated iteration."""

import statistics
import time
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist

from suite.parallel.topology import Group

ROUNDS = 25
_APART = 0.02  # seconds between rounds: as long as an action, so that everything has cooled down as it does then


class MessageCost(NamedTuple):
    """Medians over ranks and rounds, in seconds."""

    send: float  # in which the sender does nothing else
    arrival: float  # from the start of sending until the receiver has the message


def message_cost(group: Group, message: torch.Tensor) -> MessageCost | None:
    """Send a message along the pipeline, from every rank at once; all ranks of the group call this and get the same.

    None where there is only one rank. The clock is the host's, which all its processes share.
    """
    if group.size == 1:
        return None
    before, after = group.index - 1, group.index + 1
    received = torch.empty_like(message)
    sends, arrivals = [], []
    start = torch.tensor([perf_counter() + 3 * _APART], dtype=torch.float64)
    dist.broadcast(start, group.ranks[0], group=group.handle)
    for moment in (start.item() + _APART * number for number in range(ROUNDS)):
        coming = dist.irecv(received, group.ranks[before], group=group.handle) if before >= 0 else None
        time.sleep(max(0.0, moment - perf_counter()))
        begin = perf_counter()
        going = dist.isend(message, group.ranks[after], group=group.handle) if after < group.size else None
        sent = perf_counter()
        if coming is not None:
            coming.wait()
            arrivals.append(perf_counter() - moment)
        if going is not None:
            going.wait()
            sends.append(sent - begin)
    everyone: list[tuple[list[float], list[float]]] = [([], [])] * group.size
    dist.all_gather_object(everyone, (sends, arrivals), group=group.handle)
    return MessageCost(*(statistics.median(value for own in everyone for value in own[kind]) for kind in (0, 1)))
