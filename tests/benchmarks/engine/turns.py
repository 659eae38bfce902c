"""Contenders in turns: each has ranks of its own that stay, and one contender computes at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.crew import crew

from suite.measure.gemm import measured_peak
from suite.measure.provenance import cores

Step = Callable[[int], tuple[float, dict[str, Any]]]  # an iteration by number: its loss, and what else is known of it


@dataclass(frozen=True)
class Entry:
    """One contender: how many ranks it has, and what makes its step there."""

    name: str
    ranks: int
    setup: Callable[..., Step]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Turn:
    """One iteration of one contender: seconds from the first rank's start to the last one's end.

    `others` are the cores that processes which are no part of it kept busy meanwhile, on average.
    """

    entry: str
    round: int
    seconds: float
    loss: float
    others: float
    ranks: list[dict[str, Any]] = field(default_factory=list)  # what each rank says of it


def turns(entries: Sequence[Entry], warmup: int, rounds: int) -> Iterator[Turn]:
    """All contenders one after another, so many times; the warm-up's rounds are negative."""
    with ExitStack() as stack:
        works = [stack.enter_context(crew(one.ranks, _timed, one.setup, *one.arguments)) for one in entries]
        for number in range(-warmup, rounds):
            for entry, work in zip(entries, works, strict=True):
                busy, begin = _busy_seconds(), perf_counter()
                answers = work()
                busy, all_of_it = _busy_seconds() - busy, perf_counter() - begin
                begun, ended, own, losses, said = zip(*answers, strict=True)
                others = max(0.0, busy - sum(own)) / all_of_it
                yield Turn(entry.name, number, max(ended) - min(begun), losses[0], others, list(said))


def _busy_seconds() -> float:
    """What the cores of this machine have worked since it started, as Linux counts it."""
    counts = [int(count) for count in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, *interrupts = counts
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _timed(setup: Callable[..., Step], *arguments: Any) -> Callable[[], tuple[Any, ...]]:
    """On a rank, iterations that start on all ranks at once.

    Start, end (on the clock that processes of a host share), time on a core, loss, and what the step says.
    """
    step, numbers = setup(*arguments), count()

    def work() -> tuple[float, float, float, float, dict[str, Any]]:
        own = process_time()
        if dist.is_initialized():
            dist.barrier()
        begun = perf_counter()
        loss, said = step(next(numbers))
        if torch.cuda.is_initialized():  # what was launched on a GPU belongs to the iteration
            torch.cuda.synchronize()
        return begun, perf_counter(), process_time() - own, loss, said

    return work


def gemm_peaks(ranks: int, device: str) -> list[float]:
    """FLOP/s of the best matrix products in fp32 of so many ranks at once, each with one thread or the one GPU."""
    with crew(ranks, _peak, device) as work:
        return work()


def _peak(device: str) -> Callable[[], float]:
    return lambda: measured_peak(torch.float32, torch.device(device))


def gpu_name() -> str:
    """The GPU in words, asked for in a process of its own: one that has used a GPU can start no ranks that do."""
    with crew(1, _gpu_name) as work:
        return work()[0]


def _gpu_name() -> Callable[[], str]:
    return torch.cuda.get_device_name


def losses(setup: Callable[..., Step], arguments: tuple[Any, ...], iterations: int) -> list[float]:
    """The losses of one process that computes with all cores, untimed."""
    with crew(1, _with_all_cores, setup, *arguments) as work:
        return [work()[0][0] for _ in range(iterations)]


def _with_all_cores(setup: Callable[..., Step], *arguments: Any) -> Callable[[], tuple[float, dict[str, Any]]]:
    torch.set_num_threads(cores())
    step, numbers = setup(*arguments), count()
    return lambda: step(next(numbers))
