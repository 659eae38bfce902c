"""The front door: exit codes, messages, machine-readable output, and how fast it answers."""

import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command import FRONT, Answer, call, run

import suite
from suite.experiment.catalogue import load_experiment
from suite.experiment.expansion import expand
from suite.experiment.models import MODELS
from suite.launch.local import LocalJob
from suite.pipeline.names import SCHEDULE_NAMES
from suite.records.schema import Record
from suite.records.store import Store

SMALL = """\
name: small
model: {layers: 4, hidden_size: 16, heads: 4, vocab_size: 64, seq_length: 8}
training: {global_batch: 4}
measure: {warmup: 1, iterations: 1}
"""

# One point that can run, and five that break a rule each.
MIXED = (
    SMALL
    + """\
sweep:
  - cases:
      - parallel: {tensor: 1}
      - parallel: {tensor: 3}
      - {parallel: {pipeline: 4}, schedule: {name: interleaved, chunks: 2}}
      - parallel: {data: 3}
      - {parallel: {pipeline: 2}, schedule: {name: interleaved, chunks: 2}, training: {global_batch: 3}}
      - parallel: {tensor: 4, pipeline: 4, data: 4}
"""
)
BROKEN_RULES = [
    ("parallel.tensor=3", "does not divide model.heads=4", "parallel.tensor=2 would work"),
    ("model.layers=4", "fewer than one layer for each of the 8 virtual stages", "model.layers=8 would work"),
    ("training.global_batch=4", "not a multiple of data 3 * microbatch 1", "training.global_batch=3 would work"),
    ("microbatches (3)", "multiple of the pipeline size (2)", "2 or 4 microbatches would work"),
    ("64 ranks", "more than the 16 of cluster local", "parallel.data=1 would work"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, in which nothing may be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalJob, "start", lambda job: pytest.fail(f"{job.job.name} was started"))
    return tmp_path


@pytest.fixture
def mixed(here):
    (here / "mixed.yaml").write_text(MIXED)
    return here


@pytest.mark.parametrize(
    ("text", "overrides", "fragments"),
    [
        pytest.param(
            SMALL + "modle: {layers: 2}\n", [], ["small.yaml:5:1: modle", "unknown key", "nearest: model"],
            id="unknown key",
        ),
        pytest.param(
            SMALL.replace("layers: 4", "layers: four"), [],
            ["small.yaml:2:17: model.layers", "'four'", "must be a whole number of at least 1"],
            id="wrong type",
        ),
        pytest.param(
            SMALL + "schedule: 1f1c\n", [],
            ["small.yaml:5:11: schedule.name", "'1f1c'", "one of gpipe, 1f1b, interleaved", "nearest: 1f1b"],
            id="unknown schedule",
        ),
        pytest.param(
            SMALL.replace("{layers: 4, hidden_size: 16, heads: 4, vocab_size: 64, seq_length: 8}", "gpt-nona"), [],
            ["small.yaml:2:8: model", "'gpt-nona'", "must be a known model", "nearest: gpt-nano"],
            id="unknown model",
        ),
        pytest.param(
            SMALL.replace("hidden_size: 16", "hidden_size: -16"), [],
            ["small.yaml:2:33: model.hidden_size", "-16", "must be a whole number of at least 1"],
            id="negative size",
        ),
        pytest.param(
            SMALL + "training: {global_batch: 8}\n", [],
            ["small.yaml:5:1: training", "given twice", "on line 3", "keep one of them"],
            id="duplicate key",
        ),
        pytest.param(
            SMALL + "sweep: [\n", [], ["small.yaml:6:1", "not valid YAML", "expected the node content"],
            id="YAML syntax",
        ),
        pytest.param(
            SMALL + "derive: {microbatch: \"__import__('os').getpid()\"}\n", [],
            ["small.yaml:5:22: derive.microbatch", "__import__('os')", "not allowed", "min, max, ceil, floor, abs"],
            id="forbidden expression",
        ),
        pytest.param(
            SMALL + "scales: {tiny: {}, huge: {}}\n", [],
            ["small.yaml", "has no scale 'laptop'", "--scale: tiny, huge"],
            id="missing scale",
        ),
        pytest.param(
            SMALL, ["model.lyers=2"], ["override 'model.lyers=2'", "names no field", "nearest: model.layers"],
            id="override that names nothing",
        ),
        pytest.param(
            SMALL, ["layers=two"], ["override 'layers=two'", "model.layers", "'two'", "must be a whole number"],
            id="override of the wrong type",
        ),
        pytest.param(
            SMALL, ["--cluster", "mars"], ["override 'cluster=mars'", "no cluster 'mars'; known: ", "local"],
            id="unknown cluster",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_message_and_nothing_starts(here, text, overrides, fragments):
    (here / "small.yaml").write_text(text)
    for command in ("run", "plan", "status"):
        answer = call(command, "small.yaml", *overrides)
        assert (answer.code, answer.out) == (2, ""), answer
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1, answer.err
        assert [fragment for fragment in fragments if fragment not in answer.err] == [], answer.err
    assert sorted(file.name for file in here.iterdir()) == ["small.yaml"]


def test_every_mistake_of_a_file_is_said_at_once(here):
    (here / "small.yaml").write_text(SMALL.replace("heads: 4", "heads: 0") + "modle: 1\n")
    answer = call("run", "small.yaml")
    assert answer.code == 2
    assert [line.split(": ")[1:3] for line in answer.err.splitlines()] == [
        ["small.yaml:2:44", "model.heads"],
        ["small.yaml:5:1", "modle"],
    ]


def test_no_valid_point_is_bad_input(here):
    (here / "small.yaml").write_text(SMALL)
    for command in ("run", "plan"):
        answer = call(command, "small.yaml", "heads=3")
        assert answer.code == 2
        assert "small at scale laptop has no valid point" in answer.err
        assert "model.heads=2 would work" in answer.out + answer.err
    assert not (here / "results").exists()


def test_plan_lists_points_that_break_a_rule_beside_those_that_can_run(mixed):
    answer = call("plan", "mixed.yaml")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    for fragments in BROKEN_RULES:
        assert [fragment for fragment in fragments if fragment not in text] == []
    assert "1 of 6 points can run" in text


def test_plan_as_json(mixed):
    answer = call("plan", "mixed.yaml", "--json")
    assert (answer.code, answer.err) == (0, "")
    plan = answer.json
    assert (plan["experiment"], plan["scale"], plan["dropped"]) == ("small", "laptop", 0)
    good, *broken = plan["points"]
    assert good["valid"]
    assert good["reasons"] == []
    assert re.fullmatch(r"[0-9a-f]{8}", good["point_id"])
    assert (good["ranks"], good["microbatches"], good["layers_per_stage"]) == (1, 4, [4])
    h, layers, vocabulary, length, batch = 16, 4, 64, 8, 4
    per_layer = 12 * h * h + 13 * h
    assert good["parameters"] == layers * per_layer + (vocabulary + length) * h + 2 * h
    layer_flops = batch * length * layers * (24 * h * h + 4 * length * h)
    assert good["model_flops_per_iteration"] == 3 * (layer_flops + 2 * batch * length * h * vocabulary)
    assert good["state_bytes_per_rank"] > 4 * 4 * good["parameters"]
    assert [one["ranks"] for one in broken] == [3, 4, 3, 2, 64]
    assert [one["microbatches"] for one in broken] == [4, 4, None, 3, 1], "none where the batch does not divide"
    sections = {"model", "parallel", "schedule", "training", "data", "kernels", "measure", "cluster"}
    assert sections <= set(good["point"])
    for one, fragments in zip(broken, BROKEN_RULES, strict=True):
        assert not one["valid"]
        assert one["parameters"] == good["parameters"]
        assert (one["layers_per_stage"], one["state_bytes_per_rank"]) == (None, None)
        assert [fragment for fragment in fragments if fragment not in "; ".join(one["reasons"])] == []


@pytest.mark.processes
def test_a_sweep_runs_its_valid_points_and_records_the_others_as_invalid(tmp_path, monkeypatch):
    (tmp_path / "mixed.yaml").write_text(MIXED)
    answer = run("run", "mixed.yaml", cwd=tmp_path)
    assert answer.code == 1, answer
    records, problems = Store(tmp_path / "results" / "runs").read("small", "laptop", "measured")
    assert problems == []
    by_reason = {record.reason: record.status for record in records}
    assert len(records) == 6
    assert by_reason.pop(None, records) == "ok"
    assert set(by_reason.values()) == {"invalid"}
    for fragments in BROKEN_RULES:
        named = [reason for reason in by_reason if all(fragment in reason for fragment in fragments)]
        assert len(named) == 1
        assert fragments[0] in answer.err
    monkeypatch.chdir(tmp_path)
    again = call("run", "mixed.yaml", "--json")
    assert again.code == 1
    assert again.json["launches"] == []
    assert len(again.json["present"]) == 1
    assert len(again.json["invalid"]) == 5
    assert len(Store(tmp_path / "results" / "runs").read("small")[0]) == 6, "known reasons are not kept twice"


def test_status_says_where_every_point_stands(mixed):
    points = expand(load_experiment("mixed.yaml"), "laptop", ["tensor=1", "data=1", "global_batch=8,16"]).points
    store = Store("results/runs")

    def keep(planned, status, reason=None):
        record = {
            "experiment": "small", "scale": "laptop", "point_id": planned.point_id, "source": "measured",
            "point": planned.configuration, "status": status, "reason": reason,
            "started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00",
        }  # fmt: skip
        store.write(Record.model_validate(record), "abc")

    valid = [planned for planned in points if planned.valid]
    keep(valid[0], "failed", "first line\nsecond line")
    keep(valid[0], "ok")
    keep(valid[1], "failed", "rank 1: ValueError: no\n\nTraceback")
    arguments = ["status", "mixed.yaml", "tensor=1", "data=1", "global_batch=8,16"]
    answer = call(*arguments, "--json")
    assert answer.code == 1
    found = {one["point_id"]: one for one in answer.json["points"]}
    assert list(found) == [planned.point_id for planned in points]
    assert set(found[valid[0].point_id]) == {"point_id", "label", "state", "launches", "reason", "iterations"}
    assert (found[valid[0].point_id]["state"], found[valid[0].point_id]["launches"]) == ("ok", 1)
    assert found[valid[1].point_id]["state"] == "failed"
    assert found[valid[1].point_id]["reason"].startswith("rank 1: ValueError: no")
    assert {found[planned.point_id]["state"] for planned in valid[2:]} == {"missing"}
    assert {found[planned.point_id]["state"] for planned in points if not planned.valid} == {"invalid"}
    table = call(*arguments)
    assert table.code == 1
    assert "rank 1: ValueError: no" in table.out
    assert "Traceback" not in table.out


def test_status_of_nothing_run_yet_is_missing_and_no_failure(here):
    (here / "small.yaml").write_text(SMALL)
    answer = call("status", "small.yaml", "--json")
    assert answer.code == 0
    assert [one["state"] for one in answer.json["points"]] == ["missing"]


def test_a_schedule_is_proved_and_drawn():
    answer = call("schedule", "interleaved", "--stages", "4", "--microbatches", "8", "--chunks", "2")
    assert (answer.code, answer.err) == (0, "")
    assert "proved" in answer.out
    assert "bubble 0.1875 of ideal" in answer.out
    assert re.search(r"in flight at most, by rank: 11, 9, 7, 5\b", answer.out)
    assert len(re.findall(r"^rank +\d \|", answer.out, re.MULTILINE)) == 4


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gpipe", [], {"bubble_over_ideal": 3 / 8, "peak_chunks": [8, 8, 8, 8]}),
        ("1f1b", [], {"bubble_over_ideal": 3 / 8, "peak_chunks": [4, 3, 2, 1]}),
        ("1f1b", ["--cost", "1,2,1"], {"bubble_over_ideal": 3 / 8, "makespan": 44.0}),
        ("interleaved", ["--chunks", "2"], {"bubble_over_ideal": 3 / 16, "peak_activations": [5.5, 4.5, 3.5, 2.5]}),
    ],
)
def test_a_schedule_as_json(name, options, expected):
    answer = call("schedule", name, "--stages", "4", "--microbatches", "8", *options, "--json")
    assert answer.code == 0
    summary = answer.json
    promised = {"bubble_over_ideal", "bubble_makespan", "bubble_span", "makespan", "peak_activations", "peak_chunks"}
    assert promised <= set(summary)
    assert {key: summary[key] for key in expected} == expected
    work = 8 * (4 if "--cost" in options else 3)
    assert summary["makespan"] == work + summary["bubble_makespan"]
    assert summary["bubble_makespan"] == summary["bubble_over_ideal"] * work


@pytest.mark.parametrize("format_", ["svg", "csv", "torch-csv", "perfetto"])
def test_a_schedule_is_exported_whole_and_alone(here, format_):
    arguments = ("schedule", "1f1b", "--stages", "2", "--microbatches", "3", "--format", format_)
    printed = call(*arguments)
    assert (printed.code, printed.err) == (0, "")
    written = call(*arguments, "--out", "drawing")
    assert written.code == 0
    assert "written: drawing" in written.out
    assert "bubble" in written.out
    assert (here / "drawing").read_text().rstrip("\n") == printed.out.rstrip("\n")
    if format_ == "svg":
        assert re.fullmatch(r"(<\?xml[^>]*>\s*)?<svg\b.*</svg>\s*", printed.out, re.DOTALL)
    elif format_ == "perfetto":
        assert len([event for event in json.loads(printed.out)["traceEvents"] if event.get("ph") == "X"]) == 12
    elif format_ == "torch-csv":
        rows = list(csv.reader(io.StringIO(printed.out)))
        assert [[cell for cell in row if cell] for row in rows] == [
            ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
            ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
        ]
    else:
        rows = list(csv.DictReader(io.StringIO(printed.out)))
        assert len(rows) == 12


@pytest.mark.parametrize(
    ("arguments", "code", "fragments"),
    [
        (["schedule", "1f1c", "--stages", "4", "--microbatches", "8"], 2, ["'1f1c'", "nearest: 1f1b"]),
        (
            ["schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--cost", "1,x,1"],
            2,
            ["--cost 1,x,1", "F,B,W", "--cost 1,1,1 would work"],
        ),
        (["schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--cost", "1,1"], 2, ["F,B,W"]),
        (["schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--cost", "1,-1,1"], 2, ["--cost 1,-1,1"]),
        (
            ["schedule", "interleaved", "--stages", "4", "--microbatches", "6", "--chunks", "2"],
            2,
            ["microbatches (6)", "pipeline size (4)", "4 or 8 microbatches would work"],
        ),
        (["schedule", "1f1b", "--stages", "4"], 2, ["--microbatches"]),
        (["schedule", "1f1b", "--stages", "0", "--microbatches", "8"], 2, ["--stages", "1"]),
        (
            ["schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--out", "no/such/folder"],
            2,
            ["no/such/folder", "No such file or directory"],
        ),
        (["plan", "quickstrat"], 2, ["quickstrat", "nearest: quickstart"]),
        (["run", "no-such.yaml"], 2, ["no-such.yaml", "no such file"]),
        (["run", "quickstart", "--on", "mars"], 2, ["--on", "mars", "local"]),
        (["run", "quickstart", "--scale", "paper"], 2, ["no scale 'paper'", "laptop"]),
        (["report", "quickstrat"], 2, ["quickstrat", "nearest: quickstart"]),
        (["report", "quickstart"], 3, ["nothing was measured", "suite run quickstart"]),
        (["report", "quickstart", "--explain", "12345678"], 3, ["nothing was measured"]),
        (["frobnicate"], 2, ["frobnicate"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_said_with_its_exit_code(here, arguments, code, fragments):
    answer = call(*arguments)
    assert answer.code == code, answer
    assert "Traceback" not in answer.err
    assert [fragment for fragment in fragments if fragment not in answer.err] == [], answer.err
    assert list(here.iterdir()) == []


def test_a_results_folder_that_cannot_be_written_is_named(here, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(here)
    (here / "small.yaml").write_text(SMALL)
    (here / "taken").write_text("a file, not a folder")
    answer = call("run", "small.yaml", "--results", "taken")
    assert answer.code == 2
    assert answer.err == "error: --results taken: it is a file; a folder, such as results/runs, would work\n"
    for command in (("run", "small.yaml", "--dry-run"), ("status", "small.yaml"), ("report", "small.yaml")):
        assert call(*command, "--results", "taken") == Answer(2, "", answer.err)


def test_version_and_list():
    assert call("--version") == Answer(0, f"{suite.__version__}\n", "")
    answer = call("list")
    assert answer.code == 0
    listed = dict(line.split(": ", 1) for line in answer.out.splitlines() if re.match(r"\w+: ", line))
    quickstart = load_experiment("quickstart")
    points = len(expand(quickstart, "laptop").points)
    assert re.search(rf"^ +quickstart +laptop: {points} +{re.escape(quickstart.title)} *$", answer.out, re.MULTILINE)
    assert listed["schedules"] == ", ".join(SCHEDULE_NAMES)
    assert "local" in listed["clusters"]
    assert listed["models"] == ", ".join(MODELS)


def test_a_file_that_cannot_be_used_is_listed_with_what_is_wrong(here):
    (here / "experiments").mkdir()
    (here / "experiments" / "broken.yaml").write_text("modle: 1\n")
    answer = call("list")
    assert answer.code == 0
    assert re.search(r"broken +cannot be used: experiments/broken.yaml:1:1: modle: unknown key", answer.out)


@pytest.mark.parametrize("command", ["", "run", "plan", "status", "report", "schedule", "list", "doctor"])
def test_help_has_a_short_form_everywhere(command):
    short, long = (call(*command.split(), option) for option in ("-h", "--help"))
    assert short == long
    assert short.code == 0
    assert "Usage: " in short.out


def test_a_dry_run_says_what_would_run(here):
    (here / "small.yaml").write_text(SMALL)
    answer = call("run", "small.yaml", "global_batch=4,8", "--dry-run")
    assert answer.code == 0
    assert "2 launches to run, 0 points present, 0 invalid" in answer.out
    as_json = call("run", "small.yaml", "global_batch=4,8", "--dry-run", "--json").json
    assert len(as_json["missing"]) == 2
    assert as_json["present"] == []
    assert not (here / "results").exists()


def test_the_front_answers_soon_after_its_libraries_are_there(tmp_path):
    """In the processor's time and as a ratio, so that a busy machine does not count: a second is about twice theirs."""

    def spent(*command) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    libraries = (sys.executable, "-c", "import numpy, pydantic.main, rich.console, typer, yaml")
    plan = (*FRONT, "plan", "quickstart")
    schedule = (*FRONT, "schedule", "interleaved", "--stages", "4", "--microbatches", "8", "--chunks", "2")
    rounds = [(spent(*libraries), spent(*plan), spent(*schedule)) for _ in range(3)]
    theirs, *ours = map(min, zip(*rounds, strict=True))
    assert max(ours) < 2.2 * theirs


def test_whoever_stops_reading_stops_the_output_without_a_traceback(tmp_path):
    front = subprocess.Popen(
        [*FRONT, "schedule", "gpipe", "--stages", "8", "--microbatches", "500", "--format", "csv"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    front.stdout.readline()
    front.stdout.close()
    assert "Traceback" not in front.stderr.read()
    front.stderr.close()
    front.wait(timeout=60)


def test_the_front_is_the_same_from_a_shell(tmp_path):
    assert run("--version", cwd=tmp_path).out == f"{suite.__version__}\n"
    script = Path(sys.executable).parent / "suite"
    if script.exists():
        done = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"{suite.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("schedule", "gpipe", "--stages", "4", "--microbatches", "400")],
    ids=lambda arguments: arguments[0],
)
def test_a_full_disk_is_one_sentence_and_a_reader_that_left_is_none(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*FRONT, *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: the output, or a file, cannot be written: No space left on device\n"
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run([*FRONT, *arguments], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (left.returncode, left.stderr) == (1, "")
