"""The simulator: operators and collectives against arithmetic, and the parts of an iteration."""

import math

import pytest

from suite.experiment.catalogue import load_cluster
from suite.experiment.hardware import Device, Hardware, Link, Software, Tile
from suite.experiment.point import Parallel, Point
from suite.measure.flops import hardware_flops
from suite.simulate.gemm import gemm_seconds
from suite.simulate.iteration import PARTS, estimate
from suite.simulate.network import Group, all_gather, all_reduce, group, message
from suite.simulate.rows import network_rate

DEVICE = Device(name="d", source="test", peak={"fp16": 1e12, "fp32": 1e12}, memory_bytes=1e9, memory_bandwidth=1e11)
LINK = Link(bandwidth=1e9)
HARDWARE = Hardware(
    device=DEVICE,
    software=Software(name="s", blocking_messages=True),
    node_devices=4,
    node=Link(bandwidth=1e10, latency=1e-6, collective=1e-5, hop=1e-6),
    network=Link(bandwidth=1e9, latency=2e-6, collective=1e-5, hop=5e-6, whole=0.8, alone=0.5, mixed=0.25),
)


def selene():
    found = load_cluster("selene").hardware
    assert found is not None
    return found


def point(**fields):
    given = {
        "model": {"layers": 8, "hidden_size": 1024, "heads": 8, "vocab_size": 51200, "seq_length": 512},
        "training": {"global_batch": 16, "precision": "fp16"},
    }
    for key, value in fields.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    return Point.model_validate(given)


def test_a_large_product_takes_its_flops_over_the_efficient_peak():
    device = DEVICE.model_copy(update={"gemm_efficiency": 0.5})
    assert gemm_seconds(device, 1e12, 2, 4096, 4096, 4096) == pytest.approx(2 * 4096**3 / 0.5e12)


def test_a_thin_product_takes_its_bytes_over_the_memory_bandwidth():
    bytes_moved = 2 * (4096 * 1 + 1 * 4096 + 4096 * 4096)
    assert gemm_seconds(DEVICE, 1e12, 2, 4096, 4096, 1) == pytest.approx(bytes_moved / 1e11)


def test_tiles_that_stick_out_are_computed_in_vain():
    device = DEVICE.model_copy(update={"tiles": (Tile(rows=128, columns=128),), "units": 4})
    exact, over = (gemm_seconds(device, 1e12, 2, rows, 1280, 4096) for rows in (1280, 1288))
    assert over / exact == pytest.approx(11 / 10)


def test_fewer_tiles_than_units_leave_units_idle():
    device = DEVICE.model_copy(update={"tiles": (Tile(rows=128, columns=128),), "units": 100})
    one, few = (gemm_seconds(device, 1e12, 2, 128, columns, 65536) for columns in (128, 1280))
    assert one == pytest.approx(few)


def test_a_depth_that_is_no_multiple_of_eight_is_slow():
    device = DEVICE.model_copy(update={"unaligned": 0.25})
    assert gemm_seconds(device, 1e12, 2, 2048, 2048, 1004) > 3 * gemm_seconds(device, 1e12, 2, 2048, 2048, 1000)


@pytest.mark.parametrize(
    ("layout", "dimension", "expected"),
    [
        ({"tensor": 8, "data": 4, "pipeline": 2}, "tensor", Group(8, 8)),
        ({"tensor": 8, "data": 4, "pipeline": 2}, "data", Group(4, 1)),
        ({"tensor": 2, "data": 32, "pipeline": 1}, "data", Group(32, 4)),
        ({"tensor": 1, "data": 64, "pipeline": 1}, "data", Group(64, 8)),
        ({"tensor": 16, "data": 4, "pipeline": 1}, "tensor", Group(16, 8)),
        ({"tensor": 1, "data": 2, "pipeline": 8}, "pipeline", Group(8, 4)),
    ],
)
def test_groups_stand_where_the_layout_puts_them(layout, dimension, expected):
    assert group(Parallel(**layout), dimension, 8) == expected


def test_collectives_inside_a_node_are_rings():
    assert all_reduce(HARDWARE, Group(4, 4), 1e6) == pytest.approx(1e-5 + 2e-6 + 2 * 0.75 * 1e6 / 1e10)
    assert all_gather(HARDWARE, Group(4, 4), 1e6) == pytest.approx(1e-5 + 2e-6 + 0.75 * 1e6 / 1e10)
    assert all_reduce(HARDWARE, Group(1, 1), 1e6) == 0


@pytest.mark.parametrize(
    ("ranks", "bandwidth", "hops"),
    [(Group(8, 4), 4 * 0.8e9, 3e-6), (Group(8, 1), 0.5e9, 0), (Group(8, 2), 2 * 0.25e9, 1e-6)],
)
def test_collectives_between_nodes_share_adapters(ranks, bandwidth, hops):
    volume = 2 * 7 / 8 * 1e6
    expected = 1e-5 + hops + 2 * 5e-6 * (ranks.nodes - 1) + volume / bandwidth
    assert all_reduce(HARDWARE, ranks, 1e6) == pytest.approx(expected)


def test_a_stack_that_uses_one_adapter_of_a_node_is_slower():
    one = HARDWARE.model_copy(update={"software": Software(name="s", adapters=1)})
    assert all_gather(one, Group(8, 4), 1e9) == pytest.approx(4 * all_gather(HARDWARE, Group(8, 4), 1e9), rel=0.01)


def test_messages_go_at_the_rate_of_one_adapter():
    assert message(HARDWARE, True, 1e6) == pytest.approx(1e-6 + 1e-4)
    assert message(HARDWARE, False, 1e6) == pytest.approx(2e-6 + 2e-3)


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("NVSwitch + 8x200Gb HDR IB/node", 25e9),
        ("NVLink, 4x100Gb Omni-Path/node", 6.25e9),
        ("800Gb/s per 8-GPU node (4 HDR)", 12.5e9),
        ("2Tb/s RoCE per host", 31.25e9),
        ("400Gb/s per GPU", 50e9),
        ("NVSwitch, one node", None),
    ],
)
def test_a_network_in_words(words, rate):
    assert network_rate(words, 8) == rate


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"parallel": {"tensor": 4}},
        {"parallel": {"tensor": 16, "data": 2}},
        {"parallel": {"pipeline": 4, "data": 2}},
        {"parallel": {"pipeline": 4, "tensor": 2, "scatter_gather": True}, "schedule": {"name": "interleaved"}},
        {"parallel": {"pipeline": 4}, "schedule": {"name": "zb-h1"}},
        {"parallel": {"pipeline": 4}, "schedule": {"name": "chimera"}},
        {"parallel": {"tensor": 2, "sequence": True}, "training": {"recompute": "selective"}},
        {"parallel": {"data": 8, "sharding": "zero1"}},
        {"parallel": {"data": 8, "sharding": "zero3"}, "training": {"recompute": "full"}},
        {"kernels": "reference"},
    ],
)
@pytest.mark.parametrize("blocking", [True, False])
def test_the_parts_of_an_iteration_are_its_time(fields, blocking):
    hardware = selene()
    software = hardware.software.model_copy(update={"blocking_messages": blocking})
    found = estimate(point(**fields), hardware.model_copy(update={"software": software}))
    assert set(found.breakdown) == set(PARTS)
    assert all(seconds >= 0 for seconds in found.breakdown.values())
    assert sum(found.breakdown.values()) == pytest.approx(found.seconds)
    assert 0 < found.forward_backward_seconds <= found.seconds


def test_every_operator_that_is_not_fused_costs_and_all_cost_what_the_reference_does():
    one = point(parallel={"tensor": 2})
    operators = ("attention", "bias_gelu", "bias_dropout_add")

    def seconds(kernels):
        return estimate(one.model_copy(update={"kernels": kernels}), selene()).seconds

    fused = seconds("auto")
    each = [seconds({operator: "reference"}) - fused for operator in operators]
    assert all(more > 0 for more in each)
    assert sum(each) == pytest.approx(seconds("reference") - fused, rel=0.02)
    assert seconds("triton") == fused


def test_no_iteration_is_faster_than_the_peak():
    one = point(model={"layers": 4, "hidden_size": 8192, "heads": 64}, training={"microbatch": 4})
    flops = hardware_flops(one.model, one.training.global_batch, 1, "none")
    assert flops / estimate(one, selene()).seconds < selene().device.peak["fp16"]


def _even(schedule, microbatches, stages=4, **more):
    """A point whose stages all take the same time: no head, embedding or messages to speak of."""
    model = {"layers": 4 * stages, "hidden_size": 4096, "heads": 32, "vocab_size": 128}
    return point(
        model=model,
        parallel={"pipeline": stages, **more},
        schedule=schedule,
        training={"global_batch": microbatches, "microbatch": 1},
    )


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)])
@pytest.mark.parametrize("microbatches", [4, 8, 32])
def test_the_bubble_of_even_stages_is_the_papers(schedule, chunks, microbatches):
    hardware = selene().model_copy(update={"network": Link(bandwidth=1e18), "node": Link(bandwidth=1e18)})
    found = estimate(_even({"name": schedule, "chunks": chunks}, microbatches), hardware)
    work = found.forward_backward_seconds - found.breakdown["bubble"]
    assert found.breakdown["bubble"] / work == pytest.approx(3 / (chunks * microbatches), rel=0.05)


def test_scatter_and_gather_pays_where_stages_are_on_different_nodes():
    def seconds(cut):
        return estimate(_even({"name": "interleaved", "chunks": 4}, 8, tensor=8, scatter_gather=cut), selene()).seconds

    assert seconds(True) < seconds(False)


def test_recomputation_costs_a_forward_pass_of_the_layers():
    none, full = (estimate(point(training={"recompute": how}), selene()) for how in ("none", "full"))
    again = full.breakdown["gemm"] - none.breakdown["gemm"]
    assert again == pytest.approx((none.breakdown["gemm"] - _head_gemm()) / 3, rel=0.1)


def _head_gemm():
    """What the logits' products take in an iteration of `point()`: the difference that no layer makes."""
    two, one = (estimate(point(model={"layers": layers}), selene()).breakdown["gemm"] for layers in (2, 1))
    return one - (two - one)


def test_time_grows_with_the_number_of_microbatches_and_not_faster():
    times = [estimate(_even({"name": "1f1b"}, m), selene()).forward_backward_seconds for m in (64, 128, 256)]
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=1e-6)


def test_all_ranks_of_a_tensor_group_pay_what_is_not_split():
    whole, cut = (
        estimate(point(parallel={"tensor": 4, "sequence": sequence}), selene()).breakdown["elementwise"]
        for sequence in (False, True)
    )
    assert cut < whole


def test_an_unknown_precision_is_said():
    with pytest.raises(KeyError):
        estimate(point(training={"precision": "bf16"}), HARDWARE)


def test_nothing_is_infinite():
    assert math.isfinite(estimate(point(), HARDWARE).seconds)
