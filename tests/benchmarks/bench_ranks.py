"""Two ranks at once: collectives by size, and one whole iteration by layout."""

import pytest
import torch
import torch.distributed as dist
from benchmarks.crew import crew
from layouts import point, training_step

from suite.parallel.topology import Group, with_memory

REPEATS = 50
SHAPE = {"layers": 4, "hidden_size": 64, "heads": 4, "vocab_size": 256, "seq_length": 64}


def world():
    """All ranks as one group of the engine's: they share memory where the machine allows it."""
    size = dist.get_world_size()
    return with_memory({"world": Group(size, dist.get_rank(), tuple(range(size)), dist.group.WORLD)})["world"]


def all_reduce(size):
    group, values = world(), torch.zeros(size)

    def work():
        for _ in range(REPEATS):
            group.all_reduce(values)

    return work


def all_gather(size):
    group, mine = world(), torch.zeros(size // 2)

    def work():
        for _ in range(REPEATS):
            group.all_gather(mine)

    return work


def iteration(at):
    step = training_step(at)
    numbers = iter(range(10**6))
    return lambda: step.run(next(numbers))


@pytest.mark.parametrize("size", [1 << 10, 1 << 17])
@pytest.mark.parametrize("collective", [all_reduce, all_gather], ids=lambda function: function.__name__)
def test_collective(benchmark, collective, size):
    with crew(2, collective, size) as work:
        benchmark.pedantic(work, rounds=30, warmup_rounds=3)


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=str)
def test_iteration(benchmark, layout):
    at = point(layout, model=SHAPE, training={"precision": "fp32", "optimizer": "adamw", "gradient_clip": 1.0})
    with crew(at.parallel.ranks, iteration, at) as work:
        benchmark.pedantic(work, rounds=15, warmup_rounds=3)
