"""`suite history` and its figure in the report: steps, the commits at them, and the same bytes twice."""

import subprocess
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from command import call
from paired_records import BEGIN, keep, launch_of

from suite.records.store import Store
from suite.report.history import history

REVISIONS = [f"{number:07x}" for number in range(1, 13)]


def write_history(factors, revisions=REVISIONS, **fields):
    """A day and three launches for every revision."""
    draw = np.random.default_rng(2)
    for day, (revision, factor) in enumerate(zip(revisions, factors, strict=True)):
        for launch in range(3):
            seconds = 0.1 * factor * np.exp(draw.normal(0, 0.004))
            begun = BEGIN + timedelta(days=day, minutes=launch)
            times = {"started": begun.isoformat(), "finished": (begun + timedelta(seconds=50)).isoformat()}
            keep("results/runs", launch_of(0, float(seconds), **times, **fields), revision)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_step_is_found_with_the_revisions_around_it(here):
    write_history([1.0] * 5 + [1.06] * 7)
    write_history([1.0] * 12, layout=(1, 4, 1))
    answer = call("history", "synthetic", "--json")
    assert answer.code == 0, answer
    stepped, steady = sorted(answer.json, key=lambda series: -len(series["steps"]))
    assert steady["steps"] == []
    (step,) = stepped["steps"]
    assert (step["at"], step["before"], step["after"]) == (5, REVISIONS[4], REVISIONS[5])
    assert step["change"] == pytest.approx(0.06, abs=0.006)
    assert [run["launches"] for run in stepped["runs"]] == [3] * 12
    shown = call("history", "synthetic").out
    assert f"% at {REVISIONS[5]}, after {REVISIONS[4]}\n    the commits between them are not known here" in shown
    assert "no step" in shown
    assert call("history", "synthetic", "--least", "10%", "--json").json[0]["steps"] == []


def test_the_commits_at_a_step_are_named(here):
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    revisions = []
    for number in range(8):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", f"change {number}"], check=True)
        if number not in (3, 4):
            head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
            revisions.append(head.stdout.strip())
    write_history([1.0] * 3 + [1.1] * 3, revisions)
    (step,) = call("history", "synthetic", "--json").json[0]["steps"]
    assert [commit.split(maxsplit=1)[1] for commit in step["commits"]] == ["change 5", "change 4", "change 3"]


def test_another_machine_is_another_series(here):
    write_history([1.0] * 6, REVISIONS[:6])
    environment = {"environment": {"device": "cpu", "cpu": "another"}}
    write_history([1.5] * 6, REVISIONS[6:], **environment)
    series = call("history", "synthetic", "--json").json
    assert [(len(one["runs"]), one["steps"]) for one in series] == [(6, [])] * 2


def test_the_report_draws_it_and_the_same_every_time(here):
    Path("synthetic.yaml").write_text("name: synthetic\nmodel: gpt-tiny\ntraining: {global_batch: 8}\n")
    write_history([1.0] * 5 + [1.06] * 4, REVISIONS[:9])
    assert call("report", "synthetic.yaml").code == 0
    folder = Path("reports/synthetic")
    assert "1 steps of 2 % or more were found" in (folder / "report.md").read_text()
    assert 'id="history-' in (folder / "index.html").read_text()
    svg = folder / "figures" / "history.svg"
    assert REVISIONS[5] in svg.read_text()
    Path("again").mkdir()
    (figure,) = history(Store("results/runs").read("synthetic")[0])
    figure.write(Path("again"))
    for name in ("history.svg", "history.png"):
        assert (Path("again") / name).read_bytes() == (folder / "figures" / name).read_bytes()


def test_two_revisions_are_no_history(here):
    write_history([1.0, 1.5], REVISIONS[:2])
    assert history(Store("results/runs").read("synthetic")[0]) == []


def test_nothing_to_show(here):
    assert call("history", "quickstart").code == 3
    wrong = call("history", "quickstart", "--least", "0")
    assert (wrong.code, wrong.err) == (2, "error: --least '0' is not above 0 % and below 100 %; 2% would work\n")
    assert call("history", "quikstart").code == 2
