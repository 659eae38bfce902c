"""What messages and collectives take between the ranks of this machine, as the engine uses them."""

import statistics
from collections.abc import Iterator
from time import perf_counter

import torch
import torch.distributed as dist

from suite.calibrate.sweep import Sweep
from suite.parallel.host_streams import open_streams
from suite.parallel.topology import Group
from suite.pipeline.transport import Transport
from suite.training.message_cost import message_cost

_PRODUCTS = 8
_WORK = 384  # rows of the square product between two collectives; their ranks then come as they do in training


def messages(sweep: Sweep, group: Group, device: torch.device) -> Iterator[tuple[dict[str, int], float]]:
    """Sizes and seconds from the start of sending until the receiver has the message."""
    for size in sweep.messages:
        tensor = torch.zeros(size // 4, dtype=torch.float32, device=device)
        if device.type == "cuda":
            seconds = statistics.median(_there_and_back(group, tensor) for _ in range(sweep.rounds)) / 2
        else:
            transport = Transport(group, tuple(tensor.shape), tensor.dtype, device)
            transport.streams = open_streams(group.ranks, tensor)
            cost = message_cost(transport)
            assert cost is not None
            seconds = cost.arrival
        yield {"bytes": size}, seconds


def _there_and_back(group: Group, tensor: torch.Tensor) -> float:
    """Seconds until a message of the first rank is back from the second; others do not take part."""
    group.all_reduce(torch.zeros(1, device=tensor.device))
    torch.cuda.synchronize(tensor.device)
    start = perf_counter()
    steps = {0: (dist.isend, dist.irecv), 1: (dist.irecv, dist.isend)}.get(group.index, ())
    for step in steps:
        work = step(tensor, group.ranks[1 - group.index], group=group.handle)
        assert work is not None
        work.wait()
    torch.cuda.synchronize(tensor.device)
    return perf_counter() - start


def collectives(sweep: Sweep, group: Group, device: torch.device) -> Iterator[tuple[str, dict[str, int], float]]:
    """Kind, sizes and seconds of a collective that comes after work which takes all ranks about as long; one round."""
    work = torch.rand(_WORK, _WORK, device=device)
    out = torch.empty_like(work)
    for size in sweep.collectives:
        whole = torch.zeros(size // 4 // group.size * group.size, device=device)
        share = whole[: len(whole) // group.size].clone()
        for what, call, given in (("all_reduce", group.all_reduce, whole), ("all_gather", group.all_gather, share)):
            torch.mm(work, work, out=out)
            _synchronise(device)
            start = perf_counter()
            call(given)
            _synchronise(device)
            yield what, {"bytes": whole.nbytes, "ranks": group.size}, perf_counter() - start


def hidden_share(sweep: Sweep, group: Group, device: torch.device) -> float:
    """How much of a reduction disappears beneath products that run beside it, of what can; one round."""
    values = torch.zeros(max(sweep.collectives) // 16, device=device)
    work = torch.rand(_WORK, _WORK, device=device)
    out = torch.empty_like(work)

    def timed(reduce: bool, compute: bool) -> float:
        _synchronise(device)
        group.all_reduce(torch.zeros(1, device=device))
        start = perf_counter()
        pending = group.all_reduce_async(values) if reduce else None
        for _ in range(_PRODUCTS if compute else 0):
            torch.mm(work, work, out=out)
        if pending is not None:
            pending.wait()
        _synchronise(device)
        return perf_counter() - start

    reduction, products, both = timed(True, False), timed(False, True), timed(True, True)
    return (reduction + products - both) / min(reduction, products)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
