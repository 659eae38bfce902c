"""Launching for real on this machine: records, running again, and what happens when something is killed."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
from command import call, run, start

from suite.experiment.point import Point
from suite.kernels.registry import OPERATORS
from suite.launch.job import JobFolder
from suite.launch.processes import alive
from suite.measure.flops import FLOPS_VERSION
from suite.records.store import Store

TINY = """\
model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 64, seq_length: 8}
training: {global_batch: 4}
"""
CORES = len(os.sched_getaffinity(0))
REVISION = "v0.1.0"  # as `command` starts the front


def _experiment(folder: Path, name: str, rest: str) -> None:
    (folder / f"{name}.yaml").write_text(f"name: {name}\n{TINY}{rest}")


def _records(folder: Path, name: str):
    records, problems = Store(folder / "results" / "runs").read(name)
    assert problems == []
    return records


def _before(folder: Path) -> str:
    """The module path with a folder before all others."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def _wait(until, what: str, seconds: float = 120):
    """What `until()` gives once it is true; looked at often, so that what runs is still running."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := until():
            return found
        time.sleep(0.02)
    raise AssertionError(f"after {seconds} s still no {what}")


class Running:
    """A launch of a point that is under way, by its processes."""

    def __init__(self, folder: Path, name: str, done: int = 0) -> None:
        """Wait until the launch after `done` others has finished an iteration."""

        def under_way():
            started = sorted((folder / "results" / "runs" / name).rglob("progress.jsonl"), key=os.path.getctime)
            return started[done].parent if len(started) > done and started[done].stat().st_size else None

        self.path = _wait(under_way, f"progress of launch {done}")
        self.folder = JobFolder(self.path)
        self.ranks = self.folder.processes(range(16))
        self.supervisor = int(Path(f"/proc/{self.ranks[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
        self.controller = self.folder.controller()
        assert self.controller

    @property
    def point_id(self) -> str:
        return self.path.parent.parent.name

    @property
    def processes(self) -> list[int]:
        return [self.controller, self.supervisor, *self.ranks.values()]

    def ended(self, seconds: float = 5) -> bool:
        """Whether every process of the launch ends within some seconds."""
        _wait(lambda: not any(map(alive, self.processes)), f"end of {self.processes}", seconds)
        return True


def _end(front: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and all that the front printed."""
    try:
        out, err = front.communicate(timeout=180)
    finally:
        front.kill()
    return front.returncode, out + err


# Records of a sweep that went well


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which three points have run: two ranks, and one rank with as many threads as cores or more."""
    folder = tmp_path_factory.mktemp("finished")
    clusters = folder / "slurm" / "clusters"
    clusters.mkdir(parents=True)
    for name, threads in (("full", CORES), ("crowded", CORES + 1)):
        profile = f"name: {name}\nmax_ranks: 4\ndevice: cpu\nthreads_per_rank: {threads}\n"
        (clusters / f"{name}.yaml").write_text(profile)
    rest = """\
measure: {warmup: 1, iterations: 3, trace: true}
sweep:
  - cases:
      - {parallel: {pipeline: 2}}
      - {cluster: full}
      - {cluster: crowded}
"""
    _experiment(folder, "small", rest)
    answer = run("run", "small.yaml", cwd=folder)
    assert answer.code == 0, answer
    assert "3 launches to run, 0 points present, 0 invalid" in answer.out
    assert answer.out.count(" tokens/s") == 3
    assert " 0 tokens/s" not in answer.out
    return folder


@pytest.mark.processes
def test_each_launch_leaves_one_record_with_every_field(finished):
    files = list((finished / "results" / "runs").glob("*/*/*/*/*.json"))
    assert len(files) == 3
    texts = [json.loads(file.read_text()) for file in files]
    record, file = next(
        (text, file) for text, file in zip(texts, files, strict=True) if text["point"]["parallel"]["pipeline"] == 2
    )
    point = Point.model_validate(record["point"])
    place = finished / "results" / "runs" / "small" / "laptop" / "measured" / point.id
    assert file == place / f"{REVISION}-0.json"
    assert record["schema"] == 1
    identity = {key: record[key] for key in ("experiment", "scale", "point_id", "source", "status", "reason")}
    assert identity == {
        "experiment": "small",
        "scale": "laptop",
        "point_id": point.id,
        "source": "measured",
        "status": "ok",
        "reason": None,
    }
    assert record["point"] == point.model_dump(mode="json"), "fully resolved"
    iterations = record["iterations"]
    assert iterations["warmup"] == 1
    for samples in ("seconds", "loss", "grad_norm", "forward_backward_seconds"):
        assert len(iterations[samples]) == 4
        assert all(value > 0 for value in iterations[samples])
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    for rank in record["ranks"]:
        assert rank["coords"] == {"pipeline": rank["rank"], "data": 0, "tensor": 0}
        assert set(rank["busy_by_action"]) == {"F", "BW"}
        sums = [sum(values) for values in zip(*rank["busy_by_action"].values(), strict=True)]
        assert rank["busy_seconds"] == pytest.approx(sums)
        assert 0 < rank["peak_memory_bytes"] < rank["rss_bytes"]
        assert rank["optimizer_bytes"] > 0
        assert rank["skipped_steps"] == 0
        activation = 4 * 1 * 8 * 16  # fp32 [sequence, microbatch, hidden]
        assert rank["bytes_by_link"]["pipeline"] == 4 * activation, "four microbatches, one direction a rank"
        assert rank["bytes_by_link"]["tensor"] == rank["bytes_by_link"]["data"] == 0
    assert set(record["kernels"]) == set(OPERATORS)
    assert set(record["breakdown_seconds"]) >= {"actions", "reduction_wait", "optimizer"}
    assert record["checkpoint"] is None
    found = record["preflight"]
    assert (len(found["hosts"]), [link[:3] for link in found["link_seconds"]]) == (2, [["pipeline", 0, 1]])
    assert (found["gemm_seconds"] is None) == record["oversubscribed"] == (found["gemm_reason"] is not None)
    assert record["oversubscribed"] == (CORES < 2)
    assert record["flops_version"] == FLOPS_VERSION
    assert datetime.fromisoformat(record["started"]) < datetime.fromisoformat(record["finished"])
    assert datetime.fromisoformat(record["started"]).tzinfo
    environment = record["environment"]
    promised = {
        "revision", "dirty", "host", "system", "cpu", "cores", "libraries", "job_id", "device", "backend", "driver",
        "threads_per_rank", "data", "cluster", "peak_flops_per_rank", "peak_source", "peak_reason",
    }  # fmt: skip
    assert promised <= set(environment)
    assert environment["revision"] == REVISION
    assert (environment["device"], environment["threads_per_rank"]) == ("cpu", 1)
    assert environment["backend"] in ("gloo", "gloo and shared memory")
    assert environment["libraries"]["torch"]
    assert (environment["peak_flops_per_rank"] is None) == record["oversubscribed"]
    spans = record["trace"]["spans"]
    assert record["trace"]["iteration"] >= 1
    assert sorted({(span["rank"], span["kind"], span["microbatch"]) for span in spans}) == sorted(
        (rank, kind, microbatch) for rank in (0, 1) for kind in ("F", "BW") for microbatch in range(4)
    )
    assert min(span["start"] for span in spans) == 0


@pytest.mark.processes
def test_oversubscribed_is_more_threads_than_cores(finished):
    found = {record.point["cluster"]: record for record in _records(finished, "small")}
    assert found["full"].environment["threads_per_rank"] == CORES
    assert not found["full"].oversubscribed
    assert found["full"].environment["peak_flops_per_rank"] > 0
    assert "GEMM" in found["full"].environment["peak_source"]
    assert found["crowded"].oversubscribed
    assert found["crowded"].environment["peak_flops_per_rank"] is None
    assert "oversubscribed" in found["crowded"].environment["peak_reason"]


@pytest.mark.processes
def test_running_again_runs_nothing(finished, monkeypatch):
    monkeypatch.chdir(finished)
    before = {file: file.stat().st_mtime_ns for file in (finished / "results").rglob("*")}
    answer = call("run", "small.yaml", "--json")
    assert answer.code == 0
    assert answer.json["launches"] == answer.json["invalid"] == []
    assert len(answer.json["present"]) == 3
    assert {file: file.stat().st_mtime_ns for file in (finished / "results").rglob("*")} == before


@pytest.mark.processes
def test_fresh_measures_again_under_a_new_launch_number(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    before = {record.point_id: record.launch for record in _records(tmp_path, "small")}
    answer = run("run", "small.yaml", "pipeline=1", "cluster=full", "--fresh", "--json", cwd=tmp_path)
    assert answer.code == 0, answer
    (launch,) = answer.json["launches"]
    launches = [(r.point_id, r.launch) for r in _records(tmp_path, "small")]
    assert sorted(launches) == sorted([*before.items(), (launch["point_id"], 1)])


@pytest.mark.processes
def test_a_deleted_record_runs_exactly_that_point_and_of_two_sweeps_at_once_one_measures_it(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    kept = {record.file: Path(record.file).read_bytes() for record in _records(tmp_path, "small")}
    deleted = next(record for record in _records(tmp_path, "small") if record.point["cluster"] == "crowded")
    del kept[deleted.file]
    Path(deleted.file).unlink()
    fronts = [start("run", "small.yaml", "--json", cwd=tmp_path) for _ in range(2)]
    launches, said = [], ""
    for front in fronts:
        out, err = front.communicate(timeout=180)
        assert front.returncode == 0, err
        launches += [(launch["point_id"], launch["status"]) for launch in json.loads(out)["launches"]]
        said += err
    assert launches == [(deleted.point_id, "ok")]
    assert f"{deleted.point_id}: another sweep " in said
    for file, content in kept.items():
        assert Path(file).read_bytes() == content
    (new,) = [record for record in _records(tmp_path, "small") if record.file not in kept]
    assert (new.point_id, new.status) == (deleted.point_id, "ok")


@pytest.mark.processes
def test_torn_records_and_foreign_files_are_named_and_skipped(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    broken, whole, _ = _records(tmp_path, "small")
    torn = Path(broken.file).relative_to(tmp_path)
    content = (tmp_path / torn).read_bytes()
    (tmp_path / torn).write_bytes(content[: len(content) // 2])
    (tmp_path / torn.parent / "notes.txt").write_text("mine")
    answer = call("run", "small.yaml", "--dry-run", "--json")
    assert answer.code == 0
    assert answer.json["missing"] == [torn.parent.name], "what is torn is not there"
    for command, text in (
        ("run", answer.err),
        ("status", call("status", "small.yaml").out),
        ("report", call("report", "small.yaml", "--explain", whole.point_id).err),
    ):
        assert f"skipped {torn}: torn or not JSON" in text, command
        assert f"skipped {torn.parent / 'notes.txt'}: foreign file" in text, command


# A sweep in which points fail

FAULT = """\
import os, sys
from importlib.util import find_spec

class Fault:
    def find_spec(self, name, path=None, target=None):
        if name != "suite.training.step":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            module.TrainingStep.run = faulty(module.TrainingStep.run)
        spec.loader.exec_module = exec_module
        return spec

def faulty(run):
    def wrapped(self, iteration):
        if iteration == 3 and os.environ["RANK"] == "1" and self.point.parallel.data == 2:
            raise ValueError("the fault of rank 1")
        return run(self, iteration)
    return wrapped

sys.meta_path.insert(0, Fault())
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A folder in which one of two ranks was killed, one raised, one had no memory, and a fourth point went well."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "fault").mkdir()
    (folder / "fault" / "sitecustomize.py").write_text(FAULT)
    rest = """\
measure: {warmup: 1, iterations: 400}
sweep:
  - cases:
      - {parallel: {pipeline: 2}}
      - {parallel: {data: 2}}
      - {model: {vocab_size: 1000000000}}
      - {measure: {iterations: 2}}
"""
    _experiment(folder, "broken", rest)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, limits[1]))  # so that no machine can have that memory
    try:
        front = start("run", "broken.yaml", cwd=folder, PYTHONPATH=_before(folder / "fault"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    try:
        running = Running(folder, "broken")
        os.kill(running.ranks[1], signal.SIGKILL)
        place = folder / "results" / "runs" / "broken" / "laptop" / "measured" / running.point_id
        _wait(lambda: list(place.glob("*.json")), "record of the killed point", 40)
        running.ended()
    finally:
        code, text = _end(front)
    return folder, code, text


@pytest.mark.processes
def test_a_killed_rank_is_named_and_the_sweep_goes_on(broken):
    folder, code, text = broken
    assert code == 1, text
    found = {
        (
            record.point["parallel"]["pipeline"],
            record.point["parallel"]["data"],
            record.point["model"]["vocab_size"],
        ): record
        for record in _records(folder, "broken")
        if record.point["measure"]["iterations"] == 400
    }
    assert len(found) == 3
    killed = found[2, 1, 64]
    assert killed.status == "failed"
    assert killed.reason.startswith("rank 1 was killed")
    assert (killed.iterations, killed.ranks) == (None, None)
    assert killed.environment["host"]
    assert [r.status for r in _records(folder, "broken") if r.point["measure"]["iterations"] == 2] == ["ok"]
    assert "3 of 4 launches failed" in text
    assert text.count("rank 1 was killed") == 2, "in the sweep's line and in its end"


@pytest.mark.processes
def test_a_rank_that_raises_is_recorded_with_its_own_traceback(broken):
    folder, _, text = broken
    (record,) = [r for r in _records(folder, "broken") if r.point["parallel"]["data"] == 2]
    assert record.status == "failed"
    assert record.reason.startswith("rank 1: ValueError: the fault of rank 1\n\nTraceback")
    assert "raise ValueError" in record.reason
    assert "onnection" not in record.reason, "not what rank 0 saw of it"
    assert "rank 1: ValueError: the fault of rank 1" in text
    assert "Traceback" not in text


@pytest.mark.processes
def test_no_memory_is_a_status_of_its_own(broken):
    folder, _, _ = broken
    (record,) = [r for r in _records(folder, "broken") if r.point["model"]["vocab_size"] > 64]
    assert record.status == "oom"
    assert "allocate" in record.reason.splitlines()[0]


@pytest.mark.processes
def test_running_again_runs_exactly_what_failed(broken, monkeypatch):
    folder, _, _ = broken
    monkeypatch.chdir(folder)
    answer = call("run", "broken.yaml", "--dry-run", "--json")
    failed = {record.point_id for record in _records(folder, "broken") if record.status != "ok"}
    assert len(failed) == 3
    assert set(answer.json["missing"]) == failed
    states = {one["point_id"]: one["state"] for one in call("status", "broken.yaml", "--json").json["points"]}
    assert {states[point_id] for point_id in failed} == {"failed", "oom"}
    assert sorted(states.values()) == ["failed", "failed", "ok", "oom"]


@pytest.mark.processes
def test_a_supervisor_that_cannot_start_says_why(tmp_path):
    fault = """\
import os, sys

class Fault:
    def find_spec(self, name, path=None, target=None):
        if name == "suite.launch.node":
            raise ImportError("no such thing on this node")

if "SUBMITIT_LOCAL_GLOBALID" in os.environ:
    sys.meta_path.insert(0, Fault())
"""
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(fault)
    _experiment(tmp_path, "unlucky", "")
    answer = run("run", "unlucky.yaml", cwd=tmp_path, PYTHONPATH=_before(tmp_path / "fault"))
    assert answer.code == 1
    (record,) = _records(tmp_path, "unlucky")
    assert record.status == "failed"
    first, rest = record.reason.split("\n", 1)
    assert first == "the ranks' supervisor failed: ImportError: no such thing on this node"
    assert "raise ImportError" in rest
    assert first in answer.out
    assert "Traceback" not in answer.out + answer.err


# Interrupting and killing


@pytest.mark.processes
def test_an_interrupt_ends_what_runs_keeps_what_is_there_and_running_again_completes(tmp_path):
    rest = "measure: {warmup: 1, iterations: 150}\nsweep:\n  - cases:\n      - {parallel: {pipeline: 2}}\n"
    _experiment(tmp_path, "long", rest.replace("cases:\n", "cases:\n      - {measure: {iterations: 1}}\n"))
    front = start("run", "long.yaml", cwd=tmp_path)
    try:
        running = Running(tmp_path, "long", done=1)
        assert len(running.ranks) == 2
        os.killpg(front.pid, signal.SIGINT)  # as the terminal does: to every process of the group
        time.sleep(0.03)
        os.killpg(front.pid, signal.SIGINT)  # an impatient second one, while the launch is being ended
    finally:
        code, text = _end(front)
    assert running.ended()
    assert code == 130
    assert "1 of 2 launches finished and are kept" in text
    assert "The same command runs what is missing" in text
    assert "Traceback" not in text
    records = {record.point_id: record for record in _records(tmp_path, "long")}
    assert len(records) == 2
    cancelled = records.pop(running.point_id)
    assert (cancelled.status, cancelled.reason) == ("cancelled", "interrupted")
    (kept,) = records.values()
    assert kept.status == "ok"
    again = run("run", "long.yaml", "--json", cwd=tmp_path)
    assert again.code == 0, again
    assert [(one["point_id"], one["status"]) for one in again.json["launches"]] == [(running.point_id, "ok")]
    assert again.json["present"] == [kept.point_id]


@pytest.mark.processes
def test_whichever_process_is_killed_those_below_it_end_too(tmp_path, monkeypatch):
    rest = "measure: {warmup: 1, iterations: 1000000}\nparallel: {data: 2}\nsweep: {grid: {seed: [1, 2, 3]}}\n"
    _experiment(tmp_path, "endless", rest)
    monkeypatch.chdir(tmp_path)
    front = start("run", "endless.yaml", cwd=tmp_path)
    try:
        running = Running(tmp_path, "endless")
        states = [(one["state"], one["iterations"]) for one in call("status", "endless.yaml", "--json").json["points"]]
        assert states[0][0] == "running"
        assert states[0][1] >= 1
        assert states[1:] == [("missing", None)] * 2
        os.kill(running.supervisor, signal.SIGKILL)
        assert running.ended()

        running = Running(tmp_path, "endless", done=1)
        os.kill(running.controller, signal.SIGKILL)
        assert running.ended()

        running = Running(tmp_path, "endless", done=2)
        assert set(running.ranks) == {0, 1}
        os.kill(front.pid, signal.SIGKILL)
        assert running.ended()
    finally:
        code, text = _end(front)
    assert code == -signal.SIGKILL
    records = _records(tmp_path, "endless")
    assert [record.status for record in records] == ["failed", "failed"]
    for record in records:
        assert record.reason.startswith("the ranks' supervisor ended and left no record")
    assert text.count("the ranks' supervisor ended") == 2
    answer = call("run", "endless.yaml", "--dry-run", "--json")
    assert len(answer.json["missing"]) == 3
    states = [one["state"] for one in call("status", "endless.yaml", "--json").json["points"]]
    assert states == ["failed", "failed", "missing"]
