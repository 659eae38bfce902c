"""Live tensor bytes: exact on known allocations, and the same peak as torch's own memory events."""

import torch
from layouts import point, training_step
from torch.profiler import ProfilerActivity, profile

from suite.measure.memory import LiveTensorBytes, resident_bytes

KIB = 1024


def empty(kib):
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_allocations_are_counted_to_the_byte():
    with LiveTensorBytes([]) as memory:
        a = torch.empty(3, dtype=torch.float64)
        b = torch.empty(5, 7, dtype=torch.float32)
        assert memory.live == memory.peak == a.nbytes + b.nbytes == 24 + 140


def test_views_and_slices_are_not_counted_twice():
    with LiveTensorBytes([]) as memory:
        a = empty(4)
        views = [a[:100], a.view(2, -1), a.view(2, -1).t(), a.detach()]
        assert memory.live == 4 * KIB
        del a
        assert memory.live == 4 * KIB, "a view keeps the storage alive"
        del views
        assert memory.live == 0


def test_what_is_freed_is_subtracted_and_the_peak_stays():
    with LiveTensorBytes([]) as memory:
        a = empty(4)
        b = empty(2)
        del a
        assert memory.live == 2 * KIB
        c = empty(3)
        assert (memory.live, memory.peak) == (5 * KIB, 6 * KIB)
        del b, c
        assert (memory.live, memory.peak) == (0, 6 * KIB)


def test_what_was_there_before_counts_once():
    a, b = empty(4), empty(8)
    with LiveTensorBytes([a, a[:10], b]) as memory:
        assert memory.live == memory.peak == 12 * KIB
        a.add_(1)
        a.view(-1)
        assert memory.peak == 12 * KIB
        b = b + 1  # old and new live together for a moment
        assert (memory.live, memory.peak) == (12 * KIB, 20 * KIB)


def test_a_storage_that_takes_the_place_of_a_freed_one_is_counted():
    with LiveTensorBytes([]) as memory:
        for _ in range(50):
            a = empty(4)
            del a
        b = empty(4)
        assert memory.live == b.nbytes


def test_a_storage_that_is_resized_counts_for_what_it_holds():
    with LiveTensorBytes([], resized=True) as memory:
        a = empty(8)
        a.untyped_storage().resize_(0)
        b = empty(2)
        assert (memory.live, memory.peak) == (2 * KIB, 8 * KIB)
        a.untyped_storage().resize_(8 * KIB)
        a.zero_()
        assert (memory.live, memory.peak) == (10 * KIB, 10 * KIB)
        del a, b
        assert memory.live == 0


def test_every_result_of_an_operator_is_counted():
    with LiveTensorBytes([]) as memory:
        values, indices = torch.sort(torch.arange(10.0))
        assert memory.live == values.nbytes + indices.nbytes == 40 + 80


def test_gradients_of_a_backward_pass_are_counted_while_they_live():
    x = torch.zeros(KIB, dtype=torch.float32, requires_grad=True)
    with LiveTensorBytes([x]) as memory:
        loss = (x * 2).sum()
        loss.backward()
        assert x.grad is not None
        assert memory.live == 2 * 4 * KIB + loss.nbytes


def test_an_iterations_peak_is_that_of_torchs_own_memory_events():
    at = point(batch=4, microbatch=2, model={"layers": 3, "hidden_size": 64, "vocab_size": 500, "seq_length": 48})
    step = training_step(at)
    step.run(0)
    with LiveTensorBytes(step.live_tensors()) as memory:
        step.run(1)
    base = sum(tensor.untyped_storage().nbytes() for tensor in step.live_tensors())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiled:
        step.run(1)
    live = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert peak > base / 20, "the iteration allocated next to nothing: the comparison would say nothing"
    assert abs(memory.peak / (base + peak) - 1) < 0.01


def test_resident_bytes_are_those_of_this_process():
    assert 50 << 20 < resident_bytes() < 1 << 40
