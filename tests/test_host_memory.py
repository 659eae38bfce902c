"""Collectives through shared memory against torch's own, and what happens when a rank is gone or elsewhere."""

import os
import subprocess
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from suite.parallel import host_collectives, host_memory, host_streams
from suite.parallel.topology import Group, with_memory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(host_memory.this_host() is None, reason="no memory is shared on this kind of machine"),
]


def world() -> Group:
    size = dist.get_world_size()
    group = Group(size, dist.get_rank(), tuple(range(size)), dist.group.WORLD)
    shared = with_memory({"world": group})["world"]
    assert shared.memory is not None
    return shared


def whole_numbers(group: Group, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Sums of such numbers are exact in every format, in whatever order."""
    generator = torch.Generator().manual_seed(group.index)
    return torch.randint(-8, 9, shape, generator=generator).to(dtype)


def everything(slot: int) -> list[int]:
    """Every collective, whole and in parts, next to torch's; hashes of the sums of fractions."""
    host_collectives.SLOT_BYTES, host_collectives.CHUNK_BYTES = slot, slot // 4
    group = world()
    n = group.size
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for rows in (1, 3, 1000):
            own = whole_numbers(group, n * rows, 5, dtype=dtype)
            summed, largest, split = own.clone(), own.clone(), own.new_empty(rows, 5)
            dist.all_reduce(summed)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            dist.reduce_scatter_tensor(split, own.clone())
            gathered = own.new_empty(n * n * rows, 5)
            dist.all_gather_into_tensor(gathered, own)
            assert torch.equal(group.all_reduce(own.clone()), summed)
            assert torch.equal(group.all_reduce(own.clone(), dist.ReduceOp.MAX), largest)
            assert torch.equal(group.reduce_scatter(own), split)
            assert torch.equal(group.all_gather(own), gathered)
    assert group.all_reduce(torch.tensor(2.0)).item() == 2 * n
    assert group.all_reduce(torch.empty(0)).numel() == 0
    fractions = torch.rand(1000, generator=torch.Generator().manual_seed(group.index))
    return [hash(tuple(group.all_reduce(fractions).tolist())), group.traffic.bytes]


@pytest.mark.parametrize(("size", "slot"), [(2, 1 << 23), (3, 1 << 12)])
def test_collectives_are_torchs_and_every_rank_has_the_same_bits(size, slot):
    results = run_ranks(size, everything, slot)
    assert all(result == results[0] for result in results)


def several_at_once() -> list[list[float]]:
    group = world()
    values = [torch.full((5,), float(group.index + 10 * number)) for number in range(6)]
    pending = [group.all_reduce_async(value) for value in values]
    if group.index:  # a late rank, whose partner has long posted what it could
        time.sleep(0.05)
    first = group.all_reduce(torch.ones(1)).item()  # comes after all of them, and finishes them
    assert first == group.size
    for work in reversed(pending):
        assert work is not None
        work.wait()
    return [value.tolist() for value in values]


def test_operations_finish_in_the_order_in_which_they_were_started():
    for values in run_ranks(2, several_at_once):
        assert values == [[1.0 + 20 * number] * 5 for number in range(6)]


def test_a_rank_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr(host_memory, "_LOOK_SECONDS", 0.05)
    gone = subprocess.Popen(["true"])
    gone.wait()
    file = os.memfd_create("test")
    layout = host_collectives.collective_layout(2)
    os.ftruncate(file, layout.total)
    memory = host_memory.HostMemory(f"/proc/{os.getpid()}/fd/{file}", 0, [os.getpid(), gone.pid], layout)
    os.close(file)
    with pytest.raises(ConnectionError, match="rank 1 of a group of 2 is gone"):
        host_collectives.HostCollectives(memory).all_reduce(torch.ones(1)).wait()


def apart() -> list[float]:
    rank = dist.get_rank()
    host_memory.this_host = lambda: f"host {rank // 2}"
    groups = {"near": (0, 1) if rank < 2 else (2, 3), "far": (0, 2) if rank % 2 == 0 else (1, 3)}
    handles = {ranks: dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    made = {name: Group(2, ranks.index(rank), ranks, handles[ranks]) for name, ranks in groups.items()}
    shared = with_memory(made)
    assert shared["near"].memory is not None
    assert shared["far"].memory is None
    return [group.all_reduce(torch.tensor(float(rank))).item() for group in shared.values()]


def test_ranks_of_several_hosts_use_both_ways():
    assert run_ranks(4, apart) == [[1, 2], [1, 4], [5, 2], [5, 4]]


def streamed() -> list[list[float]]:
    """Each rank first sends more than there are slots, keeps none of them, and takes the last first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    streams = host_streams.open_streams(range(size), torch.empty(3, dtype=torch.float64))
    assert streams is not None
    after, before = (rank + 1) % size, (rank - 1) % size
    sent = [streams.send(after, torch.full((3,), 100.0 * rank + i, dtype=torch.float64)) for i in range(20)]
    expected = [streams.expect(before) for _ in sent]
    taken = [streams.take(before, number) for number in reversed(expected)]
    for number in sent:
        streams.settle(after, number)
    return [tensor.tolist() for tensor in reversed(taken)]


def test_messages_arrive_whole_and_in_order_though_nobody_takes_them_for_long():
    results = run_ranks(3, streamed)
    for rank, values in enumerate(results):
        assert values == [[100.0 * ((rank - 1) % 3) + number] * 3 for number in range(20)]
