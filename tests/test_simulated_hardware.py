"""Points predicted from their cluster's hardware: plans, records, and profiles that are refused."""

import json

import pytest
from command import call

from suite.experiment.catalogue import load_cluster, load_experiment
from suite.experiment.cluster import read_cluster
from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand
from suite.launch.plan import row
from suite.records.published import published
from suite.records.store import Store
from suite.report.summary import launches_of, rows_of
from suite.simulate.iteration import PARTS

PROFILE = """\
name: mine
max_ranks: 8
hardware:
  device: a100-80gb
  software: megatron-2021
  node_devices: 8
  node: {bandwidth: 200.0e9}
  network: {bandwidth: 25.0e9, whole: 0.8, fitted: {whole: {rows: none, low: 0.5, high: 0.9}}}
  storage: {read: 2.0e9, write: 1.0e9}
"""
EXPERIMENT = """\
name: small
model: {layers: 4, hidden_size: 256, heads: 4, vocab_size: 1024, seq_length: 128}
parallel: {pipeline: 2}
training: {global_batch: 8, precision: fp16}
checkpoint: {every: 5}
cluster: mine
sweep: {grid: {microbatch: [1, 2]}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm" / "clusters").mkdir(parents=True)
    (tmp_path / "slurm" / "clusters" / "mine.yaml").write_text(PROFILE)
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    return tmp_path


def simulated(folder, *overrides):
    """The records of a simulation, by microbatch."""
    call("run", "small.yaml", "--on", "simulate", *overrides)
    records, problems = Store(folder / "results" / "runs").read("small", "laptop", "simulated")
    assert problems == []
    return {record.point["training"]["microbatch"]: record for record in records}


def test_a_record_says_what_its_seconds_are_made_of_and_on_what(here):
    for microbatch, record in simulated(here).items():
        assert (record.status, record.reason) == ("ok", None)
        (seconds,) = record.iterations.seconds
        assert sum(part for (part,) in record.breakdown_seconds.values()) == pytest.approx(seconds)
        assert set(record.breakdown_seconds) == set(PARTS)
        assert record.iterations.forward_backward_seconds[0] <= seconds
        assert [rank.coords["pipeline"] for rank in record.ranks] == [0, 1]
        assert all(0 < rank.busy_seconds[0] < seconds for rank in record.ranks)
        said = record.environment
        assert (said["device"], said["peak_flops_per_rank"]) == ("NVIDIA A100-SXM4-80GB", 312e12)
        assert "datasheet" in said["peak_source"]
        assert record.memory.verdict == "fits"
        assert sum(record.memory.parts.values()) == pytest.approx(record.memory.predicted_bytes, abs=10)
        assert record.checkpoint.saves[0].iteration == 5, microbatch


def test_a_checkpoint_takes_what_the_file_system_allows(here):
    record = simulated(here)[1]
    (save,), (load,) = record.checkpoint.saves, record.checkpoint.loads
    layer, vocabulary = 12 * 256**2 + 13 * 256, 1024
    assert save.bytes == load.bytes == 14 * (4 * layer + (vocabulary + 128) * 256 + 2 * 256)
    assert (save.seconds, load.seconds) == (save.bytes / 1e9, save.bytes / 2e9)


def test_a_point_with_a_pace_of_its_own_is_not_predicted(here):
    record = simulated(here, "pace.forward=0.5")[1]
    assert record.iterations.seconds[0] > 4
    assert (record.memory, record.breakdown_seconds, record.checkpoint) == (None, None, None)
    assert "given times" in record.environment["peak_reason"]
    (one, *_) = call("plan", "small.yaml", "pace.forward=0.5", "--json").json["points"]
    assert (one["memory"], one["iteration_seconds"], one["gpu_hours_for_300e9_tokens"]) == (None, None, None)


def test_what_does_not_fit_is_out_of_memory_with_both_sizes(here):
    large = ("layers=64", "hidden_size=8192", "microbatch=1")
    answer = call("run", "small.yaml", "--on", "simulate", *large)
    assert answer.code == 1
    (record,) = simulated(here, *large).values()
    assert (record.status, record.iterations, record.memory.verdict) == ("oom", None, "does not fit")
    needed = record.memory.predicted_bytes / 1e9
    assert record.reason == f"predicted not to fit: pipeline rank 0 needs {needed:.1f} GB, and the device has 85.9 GB"
    plan = call("plan", "small.yaml", *large)
    assert plan.code == 0
    assert f"{needed:.1f}/85.9 GB does not fit" in plan.out


def test_a_precision_without_a_peak_is_said_and_not_guessed(here):
    fp16 = PROFILE.replace(
        "device: a100-80gb",
        "device: {name: half, source: none, peak: {fp16: 1.0e12}, memory_bytes: 1.0e9, memory_bandwidth: 1.0e9}",
    )
    (here / "slurm" / "clusters" / "mine.yaml").write_text(fp16)
    read_cluster.cache_clear()
    reason = "training.precision=fp32: the profile of half has no peak for it; fp16 would work"
    record = simulated(here, "precision=fp32")[1]
    assert (record.status, record.reason) == ("failed", reason)
    assert f"not predicted {record.point_id}, " in (answer := call("plan", "small.yaml", "precision=fp32")).out
    assert reason in answer.out
    read_cluster.cache_clear()


def test_the_papers_first_table_is_planned_and_simulated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = call("plan", "table-1", "--scale", "paper", "--json").json["points"]
    assert [one["memory"]["verdict"] for one in planned] == ["fits"] * 10
    for one in planned:
        batch = one["point"]["training"]["global_batch"]
        hours = 300e9 / (batch * 2048) * one["iteration_seconds"] * one["ranks"] / 3600
        assert one["gpu_hours_for_300e9_tokens"] == pytest.approx(hours)
    answer = call("run", "table-1", "--on", "simulate")
    assert answer.code == 0, answer.err
    files = (tmp_path / "results" / "runs" / "table-1" / "paper" / "simulated").glob("*/*.json")
    records = {record["point_id"]: record for record in map(json.loads, (file.read_text() for file in files))}
    for one in planned:
        assert records[one["point_id"]]["iterations"]["seconds"] == [pytest.approx(one["iteration_seconds"])]
    text = call("plan", "table-1", "--scale", "paper").out
    assert "GPU-hours/300e9 tokens" in text
    assert "GPU-hours" not in call("plan", "table-1").out, "nothing is known of this machine"


def test_the_papers_rates_are_predicted_within_6_percent():
    """Table 1, whose rows the constants were fitted on, by their throughput."""
    rates = {
        row.layers: row.value
        for row in published("narayanan2021")
        if row.table == "Table 1" and row.metric == "tflops_per_gpu"
    }
    assert len(rates) == 10
    from suite.measure.flops import paper_flops

    for planned in expand(load_experiment("table-1"), "paper").valid:
        point = planned.point
        seconds = row(planned, load_cluster).iteration_seconds
        rate = paper_flops(point.model, point.training.global_batch) / seconds / point.parallel.ranks / 1e12
        assert rate == pytest.approx(rates[point.model.layers], rel=0.06), point.model.name


def test_the_papers_checkpoint_takes_what_section_5_10_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("run", "section-5.10", "--on", "simulate").code == 0
    (record,), _ = Store(tmp_path / "results" / "runs").read("section-5.10", "paper", "simulated")
    (save,), (load,) = record.checkpoint.saves, record.checkpoint.loads
    assert save.bytes == pytest.approx(13.8e12, rel=0.03)
    assert load.seconds == pytest.approx(13.8, rel=0.03)
    assert save.seconds == pytest.approx(51, rel=0.03)


@pytest.mark.parametrize(
    ("given", "wrong", "place", "words"),
    [
        ("network: {bandwidth: 25.0e9,", "network: {bandwith: 25.0e9,", "8:13", "network.bandwith"),
        ("node: {bandwidth: 200.0e9}", "node: {bandwidth: -1.0}", "7:", "greater than 0"),
        ("device: a100-80gb", "device: a100-81gb", "4:", "a100-80gb"),
        ("software: megatron-2021", "software: megatron", "5:", "slurm/software"),
        ("whole: 0.8", "whole: 0.95", "8:", "whole is 0.95; what was fitted must lie in its range, 0.5 to 0.9"),
        ("fitted: {whole:", "fitted: {hole:", "8:", "hole, which is no constant here"),
        ("node_devices: 8", "node_devices: 0", "6:", "greater than or equal to 1"),
    ],
    ids=[
        "unknown key",
        "negative",
        "unknown device",
        "unknown software",
        "out of range",
        "fitted nothing",
        "no device",
    ],
)
def test_a_profile_that_is_wrong_is_refused_with_the_place(tmp_path, given, wrong, place, words):
    assert given in PROFILE
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILE.replace(given, wrong))
    with pytest.raises(BadInput) as refused:
        read_cluster(path)
    text = str(refused.value)
    assert f"mine.yaml:{place}" in text
    assert words in text
    assert "hardware" in text


def test_a_wrong_profile_ends_a_command_with_exit_code_2(here):
    (here / "slurm" / "clusters" / "mine.yaml").write_text(PROFILE.replace("read: 2.0e9", "read: fast"))
    read_cluster.cache_clear()
    for command in (("plan", "small.yaml"), ("run", "small.yaml", "--on", "simulate")):
        answer = call(*command)
        assert answer.code == 2
        assert "hardware.storage.read" in answer.err
    assert not (here / "results").exists()
    read_cluster.cache_clear()


def test_zero3_shards_all_of_the_state_that_a_plan_shows():
    planned = expand(load_experiment("table-2"), "paper").points
    sizes = {
        one.point.parallel.data: row(one, load_cluster) for one in planned if one.point.parallel.sharding == "zero3"
    }
    for data, found in sizes.items():
        assert found.state_bytes == pytest.approx(16 * found.parameters / data, rel=0.01)


def test_other_constants_are_another_prediction_and_the_newest_counts(here):
    first = simulated(here)
    assert "0 launches to run, 2 points present" in call("run", "small.yaml", "--on", "simulate").out
    faster = PROFILE.replace("200.0e9", "300.0e9").replace("25.0e9, whole", "50.0e9, whole")
    (here / "slurm" / "clusters" / "mine.yaml").write_text(faster)
    read_cluster.cache_clear()
    again = call("run", "small.yaml", "--on", "simulate")
    assert again.code == 0
    assert "2 launches to run, 0 points present" in again.out
    assert "its record was predicted with other constants of cluster mine (digest " in again.err
    rows = rows_of(launches_of(Store(here / "results" / "runs").read("small")[0])[0])
    digest = read_cluster(here / "slurm" / "clusters" / "mine.yaml").hardware.digest
    assert [[one.record.environment["hardware"] for one in row.used] for row in rows] == [[digest]] * 2
    assert [[one.record.environment["hardware"] for one in row.older] for row in rows] == [
        [first[microbatch].environment["hardware"]] for microbatch in (1, 2)
    ]
