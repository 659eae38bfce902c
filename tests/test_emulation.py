"""Emulated and simulated points: real ranks that wait, or none; labelled, and with no number that nothing measured."""

import contextlib
import json

import pytest
from command import call

from suite.experiment.pace import costs, message_bytes, network
from suite.experiment.point import Point
from suite.pipeline.generators import generate
from suite.pipeline.timeline import timeline

EXPERIMENT = """\
name: paced
model: {layers: 8, hidden_size: 16, heads: 2, vocab_size: 64, seq_length: 8}
parallel: {pipeline: 4}
training: {global_batch: 8}
measure: {warmup: 1, iterations: 1, trace: true}
pace: {forward: 0.01, input_gradient: 0.008, weight_gradient: 0.006}
sweep:
  grid: {schedule: [zb-v, chimera, {name: readiness, cap: 5}]}
"""


def records(folder, source):
    files = (folder / "results" / "runs" / "paced" / "laptop" / source).glob("*/*.json")
    found = [json.loads(file.read_text()) for file in files]
    return {record["point"]["schedule"]["name"]: record for record in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paced")
    (folder / "paced.yaml").write_text(EXPERIMENT)
    with contextlib.chdir(folder):
        for on in ("emulate", "simulate"):
            answer = call("run", "paced.yaml", "--on", on)
            assert answer.code == 0, answer.err + answer.out
    return folder


def spans_of(record):
    rows = {}
    for span in record["trace"]["spans"]:
        rows.setdefault(span["rank"], []).append(span)
    return rows


@pytest.mark.processes
def test_emulated_ranks_run_their_programs_and_wait_as_long_as_they_are_told(folder):
    found = records(folder, "emulated")
    assert set(found) == {"zb-v", "chimera", "readiness"}
    for name, record in found.items():
        point = Point.model_validate(record["point"])
        programs = generate(point.schedule, 4, 8).programs
        pace = point.pace
        chunks = point.schedule.chunks
        time = {"F": pace.forward, "B": pace.input_gradient, "W": pace.weight_gradient}
        time["BW"] = time["B"] + time["W"]
        for rank, row in spans_of(record).items():
            ran = [(s["kind"], s["stage"], s["microbatch"], s["replica"]) for s in row]
            program = [(a.kind, a.stage, a.microbatch, a.replica) for a in programs[rank]]
            assert (sorted(ran) == sorted(program)) if name == "readiness" else (ran == program)
            for span in row:
                assert span["end"] - span["start"] >= time[span["kind"]] / chunks
        bound = timeline(generate(point.schedule, 4, 8), costs(pace)).makespan if name != "readiness" else 0.0
        assert min(record["iterations"]["seconds"]) >= bound
        assert len(record["iterations"]["seconds"]) == 2


@pytest.mark.processes
def test_emulated_records_say_what_they_are_and_claim_nothing_of_a_device(folder):
    for record in records(folder, "emulated").values():
        assert (record["source"], record["status"], record["oversubscribed"]) == ("emulated", "ok", False)
        assert record["iterations"]["loss"] is record["iterations"]["grad_norm"] is None
        assert record["kernels"] is None
        assert record["environment"].get("peak_flops_per_rank") is None
        assert "emulated" in record["environment"]["peak_reason"]
        assert 0 < record["preflight"]["send_seconds"] < record["preflight"]["arrival_seconds"] < 1
        sent = [rank["bytes_by_link"]["pipeline"] for rank in record["ranks"]]
        assert all(count % message_bytes(Point.model_validate(record["point"])) == 0 for count in sent)
        assert sum(sent) > 0
        assert [rank["peak_memory_bytes"] for rank in record["ranks"]] == [None] * 4


@pytest.mark.processes
def test_simulated_records_hold_the_event_simulation(folder):
    found = records(folder, "simulated")
    for name, record in found.items():
        assert (record["source"], record["status"]) == ("simulated", "ok")
        point = Point.model_validate(record["point"])
        if name != "readiness":
            times = timeline(generate(point.schedule, 4, 8), costs(point.pace), network(point))
            assert record["iterations"]["seconds"] == [times.makespan]
        assert record["iterations"]["loss"] is None
        assert record["ranks"][0]["peak_memory_bytes"] is None


@pytest.mark.processes
def test_the_report_keeps_the_sources_apart(folder, monkeypatch):
    monkeypatch.chdir(folder)
    answer = call("report", "paced.yaml")
    assert answer.code == 0, answer.err
    page = (folder / "reports" / "paced" / "report.md").read_text()
    assert "3 emulated, 3 simulated" in page
    assert "measured" not in page.split("| point")[0].split("Launches")[1].splitlines()[0]


def test_more_ranks_may_wait_than_compute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paced.yaml").write_text(EXPERIMENT.replace("layers: 8", "layers: 64"))
    wide = ("paced.yaml", "schedule=1f1b", "--dry-run")
    assert call("run", *wide, "pipeline=32").code == 2
    assert call("run", *wide, "pipeline=32", "--on", "emulate").code == 0
    refused = call("run", *wide, "pipeline=65", "model.layers=65", "--on", "emulate")
    assert refused.code == 2
    assert "more than the 64 of cluster local in emulation" in refused.err
    assert call("run", *wide, "pipeline=65", "model.layers=65", "--on", "simulate").code == 0


def test_bad_paces_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paced.yaml").write_text(EXPERIMENT)
    for field, value in (("forward", "0"), ("latency", "-1"), ("bandwidth", "fast"), ("overlap", "1")):
        answer = call("run", "paced.yaml", f"pace.{field}={value}", "--on", "simulate")
        assert answer.code == 2
        assert f"pace.{field}" in answer.err
