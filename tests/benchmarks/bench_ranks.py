"""Two ranks at once: collectives by size, and one whole iteration by layout."""

import pytest
import torch
import torch.distributed as dist
from benchmarks.crew import crew
from layouts import point, training_step

REPEATS = 20
SHAPE = {"layers": 4, "hidden_size": 64, "heads": 4, "vocab_size": 256, "seq_length": 64}


def all_reduce(size):
    values = torch.zeros(size)

    def work():
        for _ in range(REPEATS):
            dist.all_reduce(values)

    return work


def all_gather(size):
    mine, all_of_it = torch.zeros(size // 2), torch.zeros(size)

    def work():
        for _ in range(REPEATS):
            dist.all_gather_into_tensor(all_of_it, mine)

    return work


def iteration(at):
    step = training_step(at)
    numbers = iter(range(10**6))
    return lambda: step.run(next(numbers))


@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
@pytest.mark.parametrize("collective", [all_reduce, all_gather], ids=lambda function: function.__name__)
def test_collective(benchmark, collective, size):
    with crew(2, collective, size) as work:
        benchmark.pedantic(work, rounds=15, warmup_rounds=2)


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=str)
def test_iteration(benchmark, layout):
    at = point(layout, model=SHAPE, training={"precision": "fp32", "optimizer": "adamw", "gradient_clip": 1.0})
    with crew(at.parallel.ranks, iteration, at) as work:
        benchmark.pedantic(work, rounds=15, warmup_rounds=3)
