"""Before anything is timed: every rank's device is of one kind, and no device and no link is slower than its like.

A slow node would be averaged into the result. Here it is named, in the record, and the launch goes on.
"""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from suite.measure.provenance import cpu_model
from suite.parallel.topology import Group, Topology

GEMM_BAND = 1.3  # a device that takes more than this times the median is named
SEND_BAND = 3.0  # the same of a link, among those of its kind
_GEMM_SIZES = {"cuda": (4096, torch.bfloat16), "cpu": (384, torch.float32)}
_REPEATS = 5  # of which the best counts
_BYTES = 2**20


@dataclass(frozen=True)
class _Link:
    """A message of 1 MiB there and back between neighbours along a dimension; seconds one way."""

    dimension: str
    source: int
    destination: int
    seconds: float


def preflight(topology: Topology, device: torch.device, oversubscribed: bool) -> dict[str, Any] | None:
    """Compare devices and links of all ranks; rank 0 returns what the record says of it.

    Raises:
        RuntimeError: on every rank, where not all devices are of one kind; it names the odd one and its host.
    """
    host = os.environ.get("SLURMD_NODENAME") or platform.node()
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    places = _everyone(topology.world, (host, kind))
    _refuse_mixture(places)
    gemm = None if oversubscribed else _gemm_seconds(topology.world, device)
    links = list(_links(topology, device))
    found = _everyone(topology.world, (gemm, links))
    if topology.rank != 0:
        return None
    hosts = [host for host, _ in places]
    gemms = [seconds for seconds, _ in found]
    every = [link for _, links in found for link in links]
    return {
        "hosts": hosts,
        "gemm_seconds": None if oversubscribed else gemms,
        "gemm_reason": "oversubscribed: the ranks share cores" if oversubscribed else None,
        "link_seconds": [[link.dimension, link.source, link.destination, link.seconds] for link in every],
        "bands": {"gemm": GEMM_BAND, "send": SEND_BAND},
        "slow": [*_slow_devices(gemms, hosts), *_slow_links(every, hosts)],
    }


def ranks_on_one_host(world: Group) -> int:
    """The most ranks that share a host, by its own name: several of SLURM's nodes may be one host."""
    return max(Counter(_everyone(world, platform.node())).values())


def _everyone(world: Group, value: Any) -> list[Any]:
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value, group=world.handle)
    return values


def _refuse_mixture(places: list[tuple[str, str]]) -> None:
    kinds = Counter(kind for _, kind in places)
    usual = kinds.most_common(1)[0][0]
    for rank, (host, kind) in enumerate(places):
        if kind != usual:
            raise RuntimeError(
                f"rank {rank} on {host} has a {kind}, and most ranks have a {usual}; a result needs devices of one "
                "kind, which slurm.constraint in the cluster's profile can ask for"
            )


def _gemm_seconds(world: Group, device: torch.device) -> float:
    """The best time of one matrix product, while every rank does the same."""
    size, dtype = _GEMM_SIZES[device.type]
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.mm(a, b)
    if world.size > 1:
        dist.barrier(group=world.handle)
    times = []
    for _ in range(_REPEATS):
        _wait(device)
        start = perf_counter()
        torch.mm(a, b, out=out)
        _wait(device)
        times.append(perf_counter() - start)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _links(topology: Topology, device: torch.device) -> Iterator[_Link]:
    """This rank's link to the next along each dimension, timed while the others of the same kind are in use too.

    First every even coordinate talks to the next one, then every odd one.
    """
    message = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
    for dimension in ("tensor", "data", "pipeline"):
        group: Group = getattr(topology, dimension)
        for parity in range(2 if group.size > 2 else group.size - 1):
            leads = group.index % 2 == parity
            other = group.index + (1 if leads else -1)
            if not 0 <= other < group.size:
                continue
            seconds = _there_and_back(message, group.ranks[other], leads) / 2
            if leads:
                yield _Link(dimension, topology.rank, group.ranks[other], seconds)


def _there_and_back(message: torch.Tensor, other: int, leads: bool) -> float:
    times = []
    for _ in range(_REPEATS + 1):  # the first one connects
        _wait(message.device)
        start = perf_counter()
        if leads:
            dist.send(message, other)
            dist.recv(message, other)
        else:
            dist.recv(message, other)
            dist.send(message, other)
        _wait(message.device)
        times.append(perf_counter() - start)
    return min(times)


def _slow_devices(seconds: list[float | None], hosts: list[str]) -> Iterator[str]:
    known = [one for one in seconds if one is not None]
    for rank, one in enumerate(seconds):
        if one is not None and one > GEMM_BAND * (usual := median(known)):
            yield f"rank {rank} on {hosts[rank]}: its matrix product takes {one / usual:.2f} times the median"


def _slow_links(links: list[_Link], hosts: list[str]) -> Iterator[str]:
    """Links slower than those of the same dimension that stay in a node, or leave it, as they do."""
    alike = defaultdict(list)
    for link in links:
        alike[link.dimension, hosts[link.source] == hosts[link.destination]].append(link)
    for (dimension, _), group in alike.items():
        usual = median(link.seconds for link in group)
        for link in group:
            if link.seconds > SEND_BAND * usual:
                source, destination = (f"rank {rank} on {hosts[rank]}" for rank in (link.source, link.destination))
                times = f"{link.seconds / usual:.2f} times the median"
                yield f"{dimension} link from {source} to {destination}: a send takes {times}"
