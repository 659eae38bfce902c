"""`suite regress`: turns, stages, calibration and what is refused; launches are written down instead of run."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import NO_COMMIT, call
from paired_records import keep, launch_of

from suite import regressing
from suite.experiment.catalogue import load_experiment
from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand
from suite.experiment.spec import read_experiment
from suite.regression import worktree
from suite.regression.turns import Session
from suite.regression.worktree import Checkout, checked_out, commit

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = """\
name: gated
model: {layers: 4, hidden_size: 64, heads: 4, vocab_size: 1000, seq_length: 32}
training: {global_batch: 8}
measure: {warmup: 2, iterations: 5}
sweep: {grid: {pipeline: [1, 2], schedule: [gpipe, 1f1b, zb-h1]}}
"""


class Machine:
    """Stands for git and for launches: which side ran which point in which order, and how long it took."""

    def __init__(self):
        self.turns, self.broken = [], []
        self.slower = {}  # by revision and schedule, relative
        self.deviation = 0.003
        self.draw = np.random.default_rng(4)

    def launch(self, checkout, file, on, results):
        (planned,) = expand(read_experiment(file), "laptop").points
        point, side = planned.point, checkout.path.name
        self.turns.append((side, point.id))
        place = len(self.turns)
        change = self.slower.get((side, point.schedule.name), 0.0)
        seconds = 0.1 * np.exp(self.draw.normal(0, self.deviation)) * (1 + change)
        fields = {"experiment": "gated", "point": point.model_dump(mode="json"), "point_id": point.id}
        if (side, place) in self.broken:
            fields |= {"status": "failed", "reason": "ValueError: no", "iterations": None}
        keep(results, launch_of(place, float(seconds), **fields), checkout.revision)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gated.yaml").write_text(EXPERIMENT)
    made = Machine()

    class Tree:
        def __init__(self, revision, name):
            self.checkout = Checkout(revision, Path(name))

        def __enter__(self):
            return self.checkout

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(regressing, "checked_out", Tree)
    monkeypatch.setattr(regressing, "commit", lambda name: f"{name}0000"[:7])
    monkeypatch.setattr(regressing, "changed", lambda: False)
    monkeypatch.setattr(Checkout, "launch", lambda *arguments: made.launch(*arguments))
    return made


def regress(*arguments, code):
    answer = call("regress", "gated.yaml", *arguments, "--json")
    assert answer.code == code, answer
    assert "Traceback" not in answer.err
    return answer.json["points"]


def test_two_points_are_measured_in_turns_in_full(machine):
    machine.slower = {("candidate", "1f1b"): 0.05}
    rows = regress("--base", "main", "schedule=gpipe,1f1b", "pipeline=1", code=1)
    assert [row["verdict"] for row in rows] == ["EQUIVALENT", "REGRESSION"]
    assert [row["pairs"] for row in rows] == [8, 8]
    assert [row["notes"] for row in rows] == [[], []]
    one = rows[0]["point_id"]
    assert [side for side, point in machine.turns if point == one] == ["base", "candidate", "candidate", "base"] * 4
    assert [point for _, point in machine.turns[:4]] == [one, one, rows[1]["point_id"], rows[1]["point_id"]]


def test_many_points_are_screened_and_only_the_suspect_are_measured_again(machine):
    machine.slower = {("candidate", "zb-h1"): 0.05, ("base", "gpipe"): 0.05}
    rows = regress("--base", "main", "--pairs", "9", code=1)
    verdicts = {row["label"]: (row["verdict"], row["pairs"]) for row in rows}
    for size in (1, 2):
        assert verdicts[f"(1,{size},1) zb-h1 m=8"] == ("REGRESSION", 9)
        assert verdicts[f"(1,{size},1) gpipe m=8"] == ("IMPROVEMENT", 9)
        assert verdicts[f"(1,{size},1) 1f1b m=8"] == ("EQUIVALENT", 6)
    assert len(machine.turns) == 2 * (6 * 6 + 4 * 9)
    assert "screened with 6 pairs" in " ".join(note for row in rows for note in row["notes"])


def test_a_candidate_that_fails_is_left_alone_after_that_pair(machine):
    machine.broken = [("candidate", 3)]
    (row,) = regress("--base", "main", "schedule=1f1b", "pipeline=1", code=1)
    assert (row["standing"], row["reason"]) == ("failed", "failed: ValueError: no")
    assert len(machine.turns) == 4


def test_a_side_that_does_not_start_is_not_comparable(machine, monkeypatch):
    monkeypatch.setattr(Checkout, "launch", lambda *arguments: "error: unknown field")
    (row,) = regress("--base", "main", "schedule=1f1b", "pipeline=1", code=3)
    assert (row["standing"], row["reason"]) == ("not comparable", "neither revision left a record")
    shown = call("regress", "gated.yaml", "--base", "main", "schedule=1f1b", "pipeline=1")
    assert "1/16 base (1,1,1) 1f1b" in shown.out
    assert "no record: error: unknown field" in shown.out


def test_calibration_says_what_this_machine_resolves_and_refuses_what_it_does_not(machine):
    machine.deviation = 0.03
    arguments = ("schedule=1f1b", "pipeline=1")
    shown = call("regress", "gated.yaml", "--calibrate", *arguments)
    assert shown.code == 0, shown
    assert len(machine.turns) == 20
    assert "a change of 10% needs " in shown.out
    assert "--tolerance 5%" in shown.out
    (known,) = json.loads(Path("results/regressions/calibrated/gated.json").read_text())
    assert 0.02 < known["deviation"] < 0.08
    refused = call("regress", "gated.yaml", "--base", "main", *arguments)
    assert refused.code == 2
    assert "--tolerance 2% is below the" in refused.err
    assert "would work" in refused.err
    assert len(machine.turns) == 20, "nothing was started"
    offered = refused.err.split("--tolerance ")[-1].split()[0]
    regress("--base", "main", "--tolerance", offered, *arguments, code=0)
    tight = call("regress", "gated.yaml", "--calibrate", "--change", "1%", *arguments)
    assert "a change of 1% is out of reach here: 8 pairs find" in tight.out


def test_a_machine_that_tells_a_from_a_gates_nothing(machine):
    machine.slower = {("candidate", "1f1b"): 0.04}
    arguments = ("schedule=1f1b", "pipeline=1")
    shown = call("regress", "gated.yaml", "--calibrate", *arguments)
    assert shown.code == 1
    assert "A against A is REGRESSION: the machine is not steady" in shown.out
    refused = call("regress", "gated.yaml", "--base", "main", "--tolerance", "50%", *arguments)
    assert refused.code == 2
    assert "A against A was REGRESSION" in refused.err
    Path("results/regressions/calibrated/gated.json").write_text("[{}]")
    broken = call("regress", "gated.yaml", "--base", "main", *arguments)
    assert broken.code == 2
    assert "no calibration" in broken.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "needs a revision to compare with, such as --base main; or --calibrate"),
        (("--base", "main", "--calibrate"), "or --calibrate, and no base"),
        (
            ("--base", "main", "--pairs", "6"),
            "--pairs 6: the smallest p of 6 pairs is 0.0156, above 0.01; 7 would work",
        ),
        (("--base", "main", "--pairs", "-1"), "7 would work"),
        (("--calibrate", "--pairs", "2"), "--pairs 2: fewer than 7 do not know their spread; 10 would work"),
        (("--base", "HEAD"), "--base HEAD: it is the candidate"),
        (("--base", "main", "pipeline=100"), "has no valid point; nothing was started"),
        (("--base", "main", "--scale", "huge"), "huge"),
    ],
)
def test_what_is_refused(machine, arguments, sentence):
    answer = call("regress", "gated.yaml", *arguments)
    assert answer.code == 2, answer
    assert sentence in answer.err
    assert machine.turns == []


@pytest.mark.parametrize("name", ["quickstart", "schedules", "throughput"])
def test_every_point_reads_back_from_the_file_that_both_revisions_are_given(name, tmp_path):
    session = Session(name, "laptop", "measured", (), "local", tmp_path)
    for planned in expand(load_experiment(ROOT / "experiments" / f"{name}.yaml"), "laptop").valid:
        (back,) = expand(read_experiment(session._file(planned.point)), "laptop").points
        assert back.point.model_dump(exclude={"measure"}) == planned.point.model_dump(exclude={"measure"})
        assert back.point.measure.launches == 1


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose second commit has another `suite`, and the short commits."""
    folder = tmp_path / "repository"
    (folder / "suite").mkdir(parents=True)
    git = ("git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    commits = []
    for number in range(2):
        (folder / "suite" / "__init__.py").write_text("")
        (folder / "suite" / "cli.py").write_text(f"import sys\ndef main():\n    sys.exit('this is tree {number}')\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", str(number)], check=True)
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        commits.append(head.stdout.strip())
    monkeypatch.setattr(worktree, "PACKAGE", folder / "suite")
    return commits


def test_a_launch_runs_the_code_of_its_worktree_wherever_it_is_started(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "cli.py").write_text("1 / 0")
    assert [commit("HEAD~1"), commit("main")] == repository
    said = []
    for revision in repository:
        with checked_out(revision, "base") as tree:
            said.append(tree.launch(Path("x.yaml"), "local", Path("results")))
        assert not tree.path.exists()
    assert said == ["this is tree 0", "this is tree 1"]
    with pytest.raises(BadInput, match="'nowhere' is no revision of"):
        commit("nowhere")


def test_without_a_checkout_there_are_no_revisions(tmp_path, monkeypatch):
    monkeypatch.setattr(worktree, "PACKAGE", tmp_path)
    with pytest.raises(BadInput, match="not installed from a git checkout"):
        commit("HEAD")


def test_a_checkout_measures_a_point_for_real(tmp_path, monkeypatch):
    """By simulation, which takes the whole way but for the ranks."""
    monkeypatch.chdir(tmp_path)
    for name, value in NO_COMMIT.items():
        monkeypatch.setenv(name, value)
    Path("gated.yaml").write_text(EXPERIMENT)
    checkout = Checkout("abc", ROOT)
    point = expand(read_experiment(Path("gated.yaml")), "laptop", ["pipeline=2", "schedule=zb-h1"]).valid[0].point
    session = Session("gated", "laptop", "simulated", (checkout, checkout), "simulate", tmp_path / "session")
    turns = []
    folders = session.measure([point], 1, "pairs", turns.append)
    assert [(turn.side, turn.status) for turn in turns] == [("base", "ok"), ("candidate", "ok")]
    assert all(len(list(folder.rglob(f"{point.id}/*.json"))) == 1 for folder in folders)
