"""Calibration: fits find known constants, the profile reads back, and the command measures this machine."""

import json
import math
from dataclasses import replace

import pytest
from command import call

from suite.calibrate.constants import calibrate, predicted
from suite.calibrate.profile import asked, calibrate_machine, write
from suite.calibrate.robust import Unknown, fit
from suite.calibrate.samples import Sample
from suite.calibrate.sweep import FULL, Body, Core, Product, Sweep
from suite.experiment.cluster import read_cluster
from suite.experiment.errors import BadInput
from suite.experiment.hardware import Device, Hardware, Link, Stream, software_named
from suite.simulate.operators import Operators
from suite.simulate.stages import stages

TINY = Sweep(
    products=(Product(8, 16, 16), Product(32, 64, 64)),
    streams=(256, 8192, 65536),
    functions=(1024, 8192),
    cores=(Core(1, 2, 32, 16), Core(1, 2, 32, 16, dropout=0.1)),
    bodies=(Body(1, 16, 2, 8, 1, 64), Body(2, 32, 2, 16, 1, 64, dropout=0.1)),
    messages=(256, 65536),
    collectives=(256, 65536, 1 << 18),
    rounds=2,
    least_seconds=1e-5,
)

# What is to be found again. Caches of 64 KB and 1 MB stand before the memory.
TRUTH = Hardware(
    device=Device(
        name="processor",
        source="made up",
        peak={"fp32": 80e9},
        memory_bytes=1e10,
        memory_bandwidth=12e9,
        streams=(
            Stream(bytes=98304, bandwidth=60e9),
            Stream(bytes=1 << 21, bandwidth=30e9),
            Stream(bytes=12 << 23, bandwidth=12e9),
        ),
        serial=True,
        gemm_efficiency=0.8,
        operand_efficiency=0.25,
        memory_efficiency=0.4,
        update_efficiency=0.9,
        attention_efficiency=0.2,
        flash_efficiency=0.3,
        flash_row_seconds=3e-7,
        flash_backward=2.8,
        function_seconds=2e-9,
        mask_seconds=8e-9,
        kernel_seconds=2e-6,
        launch_seconds=15e-6,
        backward_launches=1.2,
        action_seconds=3e-4,
        iteration_seconds=1.5e-3,
    ),
    software=software_named("suite"),
    node_devices=2,
    node=Link(bandwidth=0.8e9, message_bandwidth=1.5e9, latency=2e-4, collective=4e-4),
    network=Link(bandwidth=1.0),
)


def synthetic(sweep, hardware=TRUTH):
    """The samples that a sweep would give on the hardware, alone and 25 % slower together."""
    device, found = hardware.device, []

    def add(what, sizes, seconds=None, together=(1, 1.25)):
        for ranks, slower in {1: 1.0, 2: together[1]}.items() if together else {2: 1.0}.items():
            sample = Sample(what, sizes, 0.0, 0.0, ranks)
            found.append(replace(sample, seconds=slower * (seconds or predicted(hardware, sample))))

    for rows, inputs, outputs in sweep.products:
        for m, n, k in ((rows, outputs, inputs), (rows, inputs, outputs), (outputs, inputs, rows)):
            add("product", {"precision": "fp32", "rows": m, "columns": n, "depth": k, "part": "forward"})
    for elements in sweep.streams:
        moved = 12 * elements
        add("stream", {"elements": elements, "bytes": moved}, device.kernel_seconds + moved / device.bandwidth(moved))
    for what, each, width in (("function", 2 * device.function_seconds, 8), ("mask", device.mask_seconds, 9)):
        for elements in sweep.functions:
            moved = width * elements
            seconds = device.kernel_seconds + moved / device.bandwidth(moved) + each * elements
            add(what, {"elements": elements, "bytes": moved}, seconds)
    for core in sweep.cores:
        for part in ("forward", "backward"):
            add("core", {**core._asdict(), "precision": "fp32", "part": part})
    for body in sweep.bodies:
        for part in ("F", "BW", "rest"):
            add("body", {**body._asdict(), "precision": "fp32", "part": part})
    for size in sweep.messages:
        add("message", {"bytes": size}, together=None)
    for size in sweep.collectives:
        for what in ("all_reduce", "all_gather"):
            add(what, {"bytes": size, "ranks": 2}, together=None)
    add("hidden", {}, 0.3, together=None)
    return found


def known():
    """What of the device needs no measuring."""
    return Device(name="processor", source="", peak={"fp32": 80e9}, memory_bytes=1e10, memory_bandwidth=1, serial=True)


@pytest.fixture(scope="module")
def calibration():
    return calibrate(synthetic(FULL), known(), software_named("suite"), 2)


def test_a_fit_finds_the_constants_behind_few_outliers():
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8]
    measured = [2e-4 + size / 3e9 for size in sizes]
    measured[2] *= 5
    found = fit(
        lambda values: [values["latency"] + size / values["bandwidth"] for size in sizes],
        measured,
        {"latency": Unknown(1e-5, 1e-7, 1), "bandwidth": Unknown(1e9, 1e6, 1e12)},
    )
    assert found.values["latency"] == pytest.approx(2e-4, rel=0.05)
    assert found.values["bandwidth"] == pytest.approx(3e9, rel=0.05)
    assert found.middle < 0.03
    assert min(found.deviations) == pytest.approx(-math.log(5), rel=0.02), "the outlier stays where it is"


def test_a_fit_keeps_to_the_range_that_makes_sense():
    found = fit(lambda values: [values["x"]], [10.0], {"x": Unknown(0.5, 0.1, 1.0)})
    assert found.values == {"x": pytest.approx(1.0)}


def test_every_constant_of_the_device_is_found_again(calibration):
    found, true = calibration.hardware.device, TRUTH.device
    for name in (
        *("gemm_efficiency", "operand_efficiency", "memory_efficiency", "update_efficiency", "attention_efficiency"),
        *(
            "flash_efficiency",
            "flash_row_seconds",
            "flash_backward",
            "launch_seconds",
            "backward_launches",
            "action_seconds",
        ),
        *("iteration_seconds", "function_seconds", "mask_seconds"),
    ):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.1), name
    for size in (1e5, 3e6, 5e7):
        assert found.bandwidth(size) == pytest.approx(true.bandwidth(size), rel=0.1)
    assert found.shared == pytest.approx(0.8)
    assert max(one.middle for one in calibration.fits.values()) < 0.03


def test_so_are_those_between_ranks(calibration):
    node = calibration.hardware.node
    for name in ("bandwidth", "message_bandwidth", "latency", "collective"):
        assert getattr(node, name) == pytest.approx(getattr(TRUTH.node, name), rel=0.02), name
    assert calibration.hardware.software.overlap_share == 0.3
    assert not calibration.hardware.software.overlap_tensor


def test_the_profile_reads_back_as_what_was_found(calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = asked("machine", None, 2, "fp32")
    samples = synthetic(TINY)
    write(wanted, calibration, samples, "cpu", 1)
    cluster = read_cluster(wanted.file.absolute())
    assert cluster.hardware is not None
    body = Body(3, 96, 4, 48, 2, 512).point("fp32")
    sizes = {**Body(3, 96, 4, 48, 2, 512)._asdict(), "precision": body.training.precision, "part": "BW"}
    sample = Sample("body", sizes, 0.0, 0.0, 1)
    assert predicted(cluster.hardware, sample) == pytest.approx(predicted(calibration.hardware, sample), rel=1e-3)
    assert cluster.hardware.device.fitted.keys() == calibration.hardware.device.fitted.keys()
    kept = json.loads(wanted.measurements.read_text())
    assert len(kept["samples"]) == len(samples)
    assert kept["residuals"]["body"]["samples"] == 2 * len(FULL.bodies)


def test_a_machine_is_measured_and_then_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = calibrate_machine(asked("under-test", None, 2, "fp32"), TINY)
    assert {sample.together for sample in written.samples} == {1, 2}
    assert all(sample.seconds > 0 for sample in written.samples if sample.what != "hidden")
    (tmp_path / "small.yaml").write_text(
        "model: {layers: 2, hidden_size: 32, heads: 2, vocab_size: 64, seq_length: 16}\n"
        "training: {global_batch: 4}\nscales: {laptop: {}}\nsweep: {grid: {pipeline: [1, 2]}}\n"
    )
    answer = call("run", "small.yaml", "--on", "simulate", "--cluster", "under-test")
    assert answer.code == 0, answer.err
    for file in (tmp_path / "results" / "runs").rglob("*.json"):
        record = json.loads(file.read_text())
        parts = record["breakdown_seconds"]
        assert sum(seconds for (seconds,) in parts.values()) == pytest.approx(record["iterations"]["seconds"][0])
        assert parts["launch"][0] > 0
        assert record["environment"]["device"] == written.calibration.hardware.device.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("selene",), "the suite ships a cluster of this name"),
        (("a/b",), "a name is letters, digits"),
        (("x", "--ranks", "1"), "messages need 2 ranks or more"),
        (("x", "--precision", "fp8"), "got 'fp8'; a precision is one of"),
        (("x", "--precision", ""), "a precision is one of"),
        (("x", "--out", "y.yaml"), "is called x.yaml"),
        (("--out", "here.json"), "is called here.yaml"),
        (("mine",), "no calibration wrote it"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm" / "clusters").mkdir(parents=True)
    (tmp_path / "slurm" / "clusters" / "mine.yaml").write_text("name: mine\nmax_ranks: 4\n")
    answer = call("calibrate", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "results").exists()


def test_a_calibrated_profile_may_be_measured_again(calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = asked("machine", None, 2, "fp32")
    write(wanted, calibration, [], "cpu", 1)
    assert asked("machine", None, 2, "fp32") == wanted
    wanted.file.write_text("name: machine\nmax_ranks: 4\n")
    with pytest.raises(BadInput, match="no calibration wrote it"):
        asked("machine", None, 2, "fp32")


def test_a_bandwidth_lies_between_those_of_the_caches_around():
    device = TRUTH.device
    assert device.bandwidth(1000) == 60e9
    assert device.bandwidth(1e10) == 12e9
    assert device.bandwidth(math.sqrt(98304 * (1 << 21))) == pytest.approx(math.sqrt(60e9 * 30e9))
    assert device.model_copy(update={"streams": ()}).bandwidth(1000) == 12e9


def test_neighbours_slow_a_device_down_by_what_it_shares():
    shared = TRUTH.model_copy(update={"device": TRUTH.device.model_copy(update={"shared": 0.8})})
    product = Sample("product", {"precision": "fp32", "rows": 64, "columns": 64, "depth": 64}, 0.0, 0.0, 1)
    alone, both = (predicted(shared.occupied(ranks), product) for ranks in (1, 2))
    assert shared.occupied(1) is shared
    assert both == pytest.approx(alone / 0.8)
    assert predicted(shared.occupied(16), product) == both, "no more than the node has"


def test_a_serial_device_loads_and_issues_between_its_products():
    parallel = TRUTH.model_copy(update={"device": TRUTH.device.model_copy(update={"serial": False})})
    sizes = {"precision": "fp32", "rows": 64, "columns": 64, "depth": 64}
    product = Sample("product", sizes, 0.0, 0.0, 1)
    compute, call = 2 * 64**3 / (0.8 * 80e9), 2e-6
    memory = 3 * 4 * 64 * 64 / (0.25 * 60e9)
    assert predicted(TRUTH, product) == pytest.approx(call + compute + memory)
    assert predicted(parallel, product) == pytest.approx(call + max(compute, memory))
    point = Body(1, 32, 2, 16, 1, 128).point("fp32")
    launches = [stages(Operators(point, one), [0])[0].spent("F").launch for one in (TRUTH, parallel)]
    assert launches[0] == pytest.approx((26 + 5 + 18) * 15e-6 + 3e-4), "of a layer, the embedding, the head, the action"
    assert launches[1] < launches[0]


def test_streams_out_of_order_are_refused_with_their_place(calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    streams = TRUTH.device.streams[::-1]
    hardware = TRUTH.model_copy(update={"device": TRUTH.device.model_copy(update={"streams": streams})})
    with pytest.raises(BadInput, match=r"device: streams must ascend in bytes"):
        write(asked("machine", None, 2, "fp32"), replace(calibration, hardware=hardware), [], "cpu", 1)
