"""Predicted memory: against the engine's measured peak within 10 %, and never against what is known to fit or not."""

from pathlib import Path

import pytest
from layouts import point, training_step
from ranks import run_ranks

from suite.experiment.catalogue import load_cluster, load_experiment
from suite.experiment.expansion import expand
from suite.experiment.hardware import Device, Hardware, Link, software_named
from suite.measure.memory import LiveTensorBytes
from suite.records.published import published
from suite.simulate.iteration import program, sizes_of
from suite.simulate.memory import ALLOCATOR, Footprint, footprint
from suite.simulate.rows import Placed, placed

ROOT = Path(__file__).resolve().parents[1]

MODEL = {"layers": 4, "hidden_size": 128, "heads": 4, "vocab_size": 512, "seq_length": 128, "dropout": 0.1}
ADAMW = {"precision": "fp32", "optimizer": "adamw"}


def here():
    """The suite on a CPU."""
    device = Device(name="cpu", source="", peak={"fp32": 1e9, "bf16": 1e9}, memory_bytes=1e9, memory_bandwidth=1e9)
    link = Link(bandwidth=1e9)
    return Hardware(device=device, software=software_named("suite"), node_devices=8, node=link, network=link)


def measured(at):
    """The most bytes of live tensors in an iteration on this rank."""
    step = training_step(at)
    step.run(0)
    with LiveTensorBytes(step.live_tensors(), step.resizes) as live:
        step.run(1)
    return live.peak


LAYOUTS = {
    "one rank": {"batch": 2, "microbatch": 2},
    "no dropout, fused attention": {"batch": 4, "microbatch": 4, "model": {**MODEL, "dropout": 0.0}},
    "full recomputation": {"batch": 4, "microbatch": 4, "training": {**ADAMW, "recompute": "full"}},
    "selective recomputation": {"batch": 4, "microbatch": 4, "training": {**ADAMW, "recompute": "selective"}},
    "bf16": {"batch": 4, "microbatch": 2, "training": {**ADAMW, "precision": "bf16"}},
    "large vocabulary": {"batch": 2, "microbatch": 2, "model": {**MODEL, "layers": 2, "vocab_size": 8192}},
    "batched attention": {"batch": 1, "kernels": {"attention": "reference"}, "model": {**MODEL, "dropout": 0.0}},
    "tensor": {"layout": (2, 1, 1), "batch": 4, "microbatch": 2},
    "sequence": {"layout": (2, 1, 1), "batch": 4, "microbatch": 2, "parallel": {"tensor": 2, "sequence": True}},
    "pipeline": {"layout": (1, 4, 1), "batch": 8},
    "gpipe": {"layout": (1, 2, 1), "schedule": "gpipe", "batch": 8},
    "interleaved": {"layout": (1, 2, 1), "schedule": {"name": "interleaved", "chunks": 2}, "batch": 8},
    "split backward": {"layout": (1, 2, 1), "schedule": "zb-h1", "batch": 8},
    "two chunks, split backward": {"layout": (1, 2, 1), "schedule": "zb-v", "batch": 8},
    "pipeline, full recomputation": {"layout": (1, 2, 1), "batch": 8, "training": {**ADAMW, "recompute": "full"}},
    "data": {"layout": (1, 1, 2), "batch": 4},
    "zero1": {"layout": (1, 1, 2), "batch": 4, "parallel": {"data": 2, "sharding": "zero1"}},
    "zero3": {"layout": (1, 1, 2), "batch": 4, "parallel": {"data": 2, "sharding": "zero3"}},
    "tensor and pipeline": {"layout": (2, 2, 1), "batch": 8},
}


@pytest.mark.processes
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_engine_needs_what_is_predicted(name):
    at = point(**{"model": MODEL, "training": ADAMW, **LAYOUTS[name]})
    found = footprint(at, here(), program(at.schedule, at.parallel.pipeline, at.microbatches))
    peak = max(run_ranks(at.parallel.ranks, measured, at))
    assert sum(found.live.values()) == pytest.approx(peak, rel=0.10)


@pytest.fixture(scope="module")
def paper():
    """Every point that the paper's experiments have at its scale on its machine, by experiment, with its memory."""
    found = {}
    for file in sorted((ROOT / "experiments" / "paper").glob("*.yaml")):
        for planned in expand(load_experiment(file), "paper").valid:
            hardware = load_cluster(planned.point.cluster).hardware_for(planned.point)
            if hardware is not None:
                memory = footprint(planned.point, hardware, program(*sizes_of(planned.point)))
                found.setdefault(file.stem, []).append((planned.point, memory))
    return found


def test_nothing_that_the_paper_ran_is_predicted_not_to_fit(paper):
    assert sum(map(len, paper.values())) > 100
    wrong = [point for of in paper.values() for point, memory in of if memory.verdict == "does not fit"]
    assert [(point.parallel.sharding, point.parallel.data) for point in wrong] == [("zero3", 560)]


def test_without_recomputation_the_largest_batches_of_figure_17_do_not_fit_with_room(paper):
    verdicts = {
        point.training.global_batch: memory.verdict
        for point, memory in paper["figure-17"]
        if point.training.recompute == "none"
    }
    assert [verdicts[batch] for batch in (1, 2, 4, 8)] == ["fits"] * 4
    assert "fits" not in [verdicts[batch] for batch in (16, 32, 64, 128, 256)]


def test_zero3_with_microbatches_of_4_fits_640_devices_sooner_than_560(paper):
    """Table 2 has 640 devices for this row because 560 did not hold it, of whose 86 GB each the states take 15."""
    found = {
        point.parallel.data: memory
        for point, memory in paper["table-2"]
        if (point.parallel.sharding, point.training.microbatch) == ("zero3", 4)
    }
    assert found[640].verdict != "does not fit"
    assert found[560].verdict != "fits"
    states = [sum(found[n].live[part] for part in ("weights", "gradients", "optimizer")) for n in (560, 640)]
    assert states[0] - states[1] == pytest.approx(1.9e9, rel=0.05)


@pytest.mark.parametrize(
    ("predicted", "verdict"), [(0.89, "fits"), (0.91, "undecided"), (1.09, "undecided"), (1.11, "does not fit")]
)
def test_within_a_tenth_of_the_capacity_there_is_no_verdict(predicted, verdict):
    assert Footprint(0, {"weights": 100.0}, 0.0, 100.0 * (1 + ALLOCATOR) / predicted).verdict == verdict


def test_the_parts_add_up_and_the_kernels_in_use_decide_what_is_kept(paper):
    point, memory = paper["figure-17"][3]
    said = memory.as_json()
    assert sum(said["parts"].values()) == pytest.approx(said["predicted_bytes"], abs=10)
    hardware = load_cluster("selene").hardware
    flash = hardware.model_copy(update={"software": hardware.software.model_copy(update={"flash_attention": True})})
    less = footprint(point, flash, program(*sizes_of(point)))
    s, b, n, t = point.model.seq_length, point.training.microbatch, point.model.heads, point.parallel.tensor
    assert memory.live["activations"] - less.live["activations"] > 0.9 * 5 * s * s * b * n / t * 5 * 8  # layers, alive


def test_the_zero_bubble_papers_peaks_are_predicted():
    """Its table 4 has what the allocator held in live tensors, GB.

    Left out are the schedules that free part of a layer's activations with B, which the memory model keeps until W.
    """
    found = []
    for row in published("zero_bubble"):
        where = placed(row)
        if row.metric == "memory" and isinstance(where, Placed) and where.point.schedule.name != "list":
            live = footprint(where.point, where.hardware, program(*sizes_of(where.point))).live
            found.append((sum(live.values()) / 1e9, row.value))
    assert len(found) >= 6
    for predicted, printed in found:
        assert predicted == pytest.approx(printed, rel=0.05)


def test_bigscience_saw_more_than_is_predicted_by_less_than_a_fifth():
    """nvidia-smi's GiB in fp16, which hold the allocator's cache; one row is out of line with its neighbours."""
    ratios = []
    for row in published("bigscience2022"):
        where = placed(row)
        if row.metric == "memory" and row.precision == "fp16" and isinstance(where, Placed):
            memory = footprint(where.point, where.hardware, program(*sizes_of(where.point)))
            ratios.append(memory.predicted / 2**30 / row.value)
    assert len(ratios) > 30
    assert sum(0.8 < ratio < 1.05 for ratio in ratios) >= len(ratios) - 1
    assert sum(ratios) / len(ratios) == pytest.approx(0.9, abs=0.05)
