"""The front of a launch: when it ends what nobody else ends, interrupts, and one record for each launch."""

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from layouts import point

from suite.experiment.cluster import Cluster
from suite.launch import local, sweep
from suite.launch.job import JobFolder
from suite.launch.local import LocalJob
from suite.launch.processes import take_interrupts, uninterrupted
from suite.launch.slurm.settle import Jobs
from suite.launch.status import states
from suite.launch.sweep import LocalSweep
from suite.launch.todo import Todo
from suite.launch.watchdog import FRONT_LATER, START_SECONDS, Board
from suite.records.store import Store

POINT = point((1, 2, 1), measure={"stall_seconds": 5.0})
WATCHER = SimpleNamespace(start=lambda job: None, iteration=lambda *_: None, end=lambda *_: None)


class NothingStarted(LocalJob):
    """A job that ends as soon as it begins; what its node would do is left out."""

    def start(self) -> None:
        pass

    def wait(self):
        yield


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs launches of one point, as a given kind of job; returns the point's records."""

    def launched(kind: type[LocalJob], count: int = 1, watcher: Any = WATCHER):
        monkeypatch.setattr(sweep, "LocalJob", kind)
        work = LocalSweep("one", "laptop", "measured", tmp_path, lambda name: Cluster(name=name, max_ranks=4))
        list(work.run(Todo([(POINT, count)], [], [], []), watcher))
        records, problems = Store(tmp_path).read("one")
        assert problems == []
        return records

    return launched


@pytest.fixture
def later(monkeypatch):
    """Puts the front's clock forward by some seconds."""
    return lambda seconds: monkeypatch.setattr(
        local, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    )


def _job(folder: Path) -> LocalJob:
    assert JobFolder(folder).claim({})
    return LocalJob(SimpleNamespace(folder=folder, point=POINT))


def test_the_front_ends_a_launch_only_when_every_note_is_too_old(tmp_path, later):
    job = _job(tmp_path / "job")
    Board.create(job.folder.board(), 2)
    later(5 + FRONT_LATER - 2)
    assert job.stalled() is None, "the ranks' own watchdogs come first"
    later(5 + FRONT_LATER + 2)
    first, *ranks = job.stalled().splitlines()
    assert "measure.stall_seconds=5" in first
    assert [line.split(", for")[0] for line in ranks] == ["rank 0: starting up", "rank 1: starting up"]
    job.folder.board().unlink()
    assert job.stalled(), "the board outlives its file"


def test_one_rank_that_gets_further_is_enough(tmp_path, later, monkeypatch):
    job = _job(tmp_path / "job")
    Board.create(job.folder.board(), 2)
    later(100)
    monkeypatch.setattr("suite.launch.watchdog.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 90))
    Board(job.folder.board(), 1).note_phase("updating the weights")
    assert job.stalled() is None


def test_a_supervisor_that_starts_no_rank_is_ended_too(tmp_path, later):
    job = _job(tmp_path / "job")
    later(START_SECONDS + FRONT_LATER - 2)
    assert job.stalled() is None
    later(START_SECONDS + FRONT_LATER + 2)
    assert "started no rank in 210 s" in job.stalled()


def test_a_launch_that_the_front_ends_is_a_failed_record_with_the_account(run):
    class Stalled(NothingStarted):
        def stalled(self) -> str:
            return "nobody got further\nrank 0: updating the weights"

        def cancel(self) -> None:
            cancelled.append(True)

    cancelled = []
    (record,) = run(Stalled)
    assert cancelled
    assert (record.status, record.reason) == ("failed", "nobody got further\nrank 0: updating the weights")


def test_a_launch_whose_folder_was_deleted_keeps_the_one_record_of_its_node(run):
    class Deleted(NothingStarted):
        def start(self) -> None:
            self.job.write(self.job.record("failed", "the node's word", "2026-01-01T00:00:00+00:00"))

    (record,) = run(Deleted)
    assert record.reason == "the node's word"


def test_a_point_that_another_sweep_measures_is_left_to_it(run, tmp_path):
    class Measured(NothingStarted):
        def start(self) -> None:
            self.job.write(self.job.record("ok", None, "2026-01-01T00:00:00+00:00"))
            self.folder.note_controller(ended.pid)

    class MeasuredMeanwhile(Measured):
        def start(self) -> None:
            super().start()
            other = self.job.record("ok", None, "2026-01-01T00:00:00+00:00")
            Store(self.job.store).write(other, "other")

    left = []
    watcher = SimpleNamespace(**vars(WATCHER), skip=lambda point, launches, why: left.append((launches, why)))
    with subprocess.Popen(["true"]) as ended:
        pass
    assert len(run(Measured, 2, watcher)) == 2
    assert left == []
    assert len(run(MeasuredMeanwhile, 2, watcher)) == 4
    assert left == [(1, "another sweep has measured it since this one began")]
    (job, *_) = tmp_path.rglob("jobs/*")
    JobFolder(job).note_controller(os.getpid())
    assert len(run(Measured, 3, watcher)) == 4
    assert left[1][0] == 3
    assert left[1][1].startswith(f"another sweep is measuring it (process {os.getpid()},")
    process, started, host = (job / "controller").read_text().split()
    (job / "controller").write_text(f"{process} {int(started) - 1} {host}")  # an earlier process with the same id
    assert len(run(Measured, 1, watcher)) == 5


def test_a_launch_is_starting_until_its_first_iteration(tmp_path):
    planned = SimpleNamespace(point=POINT, point_id=POINT.id, reasons=[])
    job = JobFolder(tmp_path / POINT.id / "jobs" / "abc-0")

    def state() -> tuple[str, int | None]:
        (one,) = states([planned], [], [tmp_path], Jobs())
        return one.state, one.iterations

    assert state() == ("missing", None)
    assert job.claim({})
    assert state() == ("starting", 0)
    job.progress_file.write_text('{"iteration": 0}\n')
    assert state() == ("running", 1)


def test_requests_to_end_are_interrupts_and_none_comes_while_cancelling():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        take_interrupts()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGTERM):
            with uninterrupted():
                os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
