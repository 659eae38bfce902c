"""`suite report` at the front door: what it shows, what it leaves out, and with which exit code."""

import json
from pathlib import Path

import pytest
from command import Answer, call
from report_records import MODEL, record_of

from suite.records.store import Store

SYNTHETIC = f"""\
name: synthetic
model: {json.dumps(MODEL)}
training: {{global_batch: 8}}
measure: {{warmup: 2, iterations: 5, trace: true}}
sweep: {{grid: {{schedule: [gpipe, 1f1b], pipeline: [1, 4]}}}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an experiment file."""
    monkeypatch.chdir(tmp_path)
    Path("synthetic.yaml").write_text(SYNTHETIC)
    return tmp_path


def keep(*records) -> list[Path]:
    return [Store("results/runs").write(record, "abc1234") for record in records]


def edit(path: Path, change) -> None:
    """Change a record's file by hand."""
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def report(*arguments: str) -> Answer:
    answer = call("report", "synthetic.yaml", *arguments)
    assert "Traceback" not in answer.err
    return answer


def test_overrides_choose_points_and_the_others_are_counted(here):
    records = [record_of((1, p, 1), name) for name in ("gpipe", "1f1b") for p in (1, 4)]
    keep(*records, record_of((1, 2, 1)))
    everything = report()
    assert everything.code == 0
    assert all(record.point_id in everything.out for record in records)
    some = report("schedule=gpipe", "pipeline=2,4")
    assert (some.code, some.err) == (0, "synthetic: records of other points left out: 4\n")
    shown = [record.point_id for record in records if record.point_id in some.out]
    assert shown == [record_of((1, 4, 1), "gpipe").point_id]
    assert "synthetic (schedule=gpipe pipeline=2,4)" in (here / "reports" / "synthetic" / "report.md").read_text()
    none = report("schedule=interleaved")
    assert none.code == 3
    assert "nothing was measured; suite run synthetic.yaml schedule=interleaved first" in none.err
    wrong = report("schedul=gpipe")
    assert wrong == Answer(2, "", wrong.err)
    assert "nearest: schedule" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["report", "synthetic.yaml", "quickstart", "--explain", "1234"], ["--explain '1234'", "one experiment"]),
        (["report", "synthetic.yaml", "--explain", ""], ["--explain ''", "a point's id"]),
        (["report", "synthetic.yaml", "--explain", "zzz"], ["no record of point zzz", "known: "]),
        (["report", "synthetic.yaml", "--scale", ""], ["no scale ''", "has: laptop"]),
        (["report", "synthetic.yaml", "--scale", "paper"], ["no scale 'paper'", "has: laptop"]),
        (["report", "old", "--scale", "paper"], ["no scale 'paper'", "known: laptop"]),
        (["report", "old", "tensor=1"], ["old: has records and no file", "leave them out"]),
        (["report", "tensor=1"], ["suite report quickstart tensor=1 would work"]),
        (["plan", "synthetic.yaml", "--scale", ""], ["no scale ''", "has: laptop"]),
    ],
    ids=" ".join,
)
def test_what_cannot_be_reported_is_said(here, arguments, fragments):
    keep(record_of(), record_of(experiment="old"))
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert [fragment for fragment in fragments if fragment not in answer.err] == [], answer.err


def test_records_without_a_file_are_reported_by_name(here):
    keep(record_of(experiment="old"))
    answer = call("report", "old", "--scale", "laptop")
    assert (answer.code, answer.err) == (0, "")


def test_more_than_the_peak_is_a_sentence_for_explain_too(here):
    record = record_of(environment={"peak_flops_per_rank": 1e6, "peak_source": "a typing error"})
    keep(record)
    for arguments in ((), ("--explain", record.point_id)):
        answer = report(*arguments)
        assert answer == Answer(1, "", answer.err)
        assert answer.err.startswith("error: more than 100 % of peak")


def test_explain_passes_over_what_it_cannot_read(here):
    record = record_of()
    good, newer = keep(record, record)
    edit(newer, lambda raw: raw["point"].update(gating=True))
    answer = report("--explain", record.point_id)
    assert answer.code == 0
    assert str(good) in answer.out
    assert answer.err == f"skipped {newer}: configuration cannot be read: gating: Extra inputs are not permitted\n"
    good.unlink()
    assert report("--explain", record.point_id).code == 3


def test_records_in_which_nothing_was_timed_are_nothing_measured(here):
    keep(record_of(status="oom", reason="too large", iterations=None, ranks=None, trace=None))
    answer = report()
    assert answer.code == 3
    assert "oom: too large" in answer.out
    assert answer.err == "synthetic: nothing was measured; no launch has a timed iteration\n"
    keep(record_of((1, 4, 1)))
    assert report().code == 0


EDITS = {
    "a peak that is no number": (lambda raw: raw["environment"].update(peak_flops_per_rank="fast"), "peak_flops"),
    "a negative peak": (lambda raw: raw["environment"].update(peak_flops_per_rank=-1.0), "peak_flops_per_rank"),
    "a peak without end": (lambda raw: raw["environment"].update(peak_flops_per_rank=float("inf")), "peak_flops"),
    "a peak that is not a number": (lambda raw: raw["environment"].update(peak_flops_per_rank=float("nan")), "peak_f"),
    "other checkpoints": (lambda raw: raw.update(checkpoint={"x": 1}), "checkpoint.saves: Field required"),
    "a save without time": (
        lambda raw: raw.update(checkpoint={"saves": [{"iteration": 1, "bytes": 2}], "loads": []}),
        "checkpoint.saves.0.seconds",
    ),
    "a negative warm-up": (lambda raw: raw["iterations"].update(warmup=-1), "iterations.warmup"),
    "nothing but warm-up": (lambda raw: raw["iterations"].update(warmup=7), "warmup is 7, and there are 7 iterations"),
    "a trace without end": (lambda raw: raw["trace"]["spans"][0].update(end=float("inf")), "trace.spans.0.end"),
    "negative memory": (lambda raw: raw["ranks"][0].update(peak_memory_bytes=-1), "peak_memory_bytes"),
    "another configuration": (
        lambda raw: raw["point"]["training"].update(global_batch=16),
        "edited: its configuration",
    ),
}


def test_an_edited_record_is_skipped_with_its_reason_and_the_others_stay(here):
    good, *bad = keep(record_of(), *(record_of((1, 4, 1), training={"seed": seed}) for seed in range(len(EDITS))))
    for file, (apply, _) in zip(bad, EDITS.values(), strict=True):
        edit(file, apply)
    answer = report()
    assert answer.code == 0
    assert answer.err.count("\n") == len(EDITS)
    for file, (change, (_, reason)) in zip(bad, EDITS.items(), strict=True):
        (line,) = [line for line in answer.err.splitlines() if line.startswith(f"skipped {file}: ")]
        assert reason in line, change
        assert file.parent.name not in answer.out, change
    assert good.parent.name in answer.out
    seeds = ",".join(map(str, range(len(EDITS))))
    status = call("status", "synthetic.yaml", "schedule=1f1b", "pipeline=4", f"seed={seeds}", "--json").json["points"]
    assert [one["state"] for one in status] == ["missing"] * len(EDITS), "what was edited is not there"
    (kept,) = call("status", "synthetic.yaml", "schedule=1f1b", "pipeline=1", "--json").json["points"]
    assert kept["state"] == "ok"


def test_what_only_a_newer_suite_knows_is_kept_and_changes_nothing(here):
    record = record_of((1, 4, 1))
    (path,) = keep(record)
    edit(path, lambda raw: (raw.update(weather="fine"), raw["environment"].update(weather="fine")))
    edit(path, lambda raw: raw["ranks"][0].update(bytes_by_link={"tensor": 1, "sky": 2}, weather="fine"))
    answer = report()
    assert (answer.code, answer.err) == (0, "")
    (back,) = Store("results/runs").read("synthetic")[0]
    assert back.environment["weather"] == "fine"


def test_an_invalid_point_that_could_not_be_resolved_has_an_id_of_its_own(here):
    keep(record_of(), record_of((1, 4, 1), status="invalid", reason="no value", point_id="ffffffff", iterations=None))
    answer = report()
    assert (answer.code, answer.err) == (0, "")
    assert "ffffffff: invalid: no value" in answer.out
