"""Ending launches and reading what they print, from another shell than the one that started them."""

import platform
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from layouts import point

from suite.launch import cancel as cancel_module
from suite.launch.cancel import cancel
from suite.launch.job import Job, JobFolder, now
from suite.launch.logs import Logs, last_words
from suite.launch.processes import stamp
from suite.launch.slurm import states
from suite.launch.slurm.settle import Jobs
from suite.launch.slurm.states import CannotAskError
from suite.launch.slurm.submission import Submission
from suite.records.store import Store


def launched(store: Path, launch: int = 0) -> tuple[Job, JobFolder]:
    made = Job("one", "laptop", "measured", point((1, 2, 1)), "abc", launch, store, 1, "cpu")
    folder = JobFolder(made.folder)
    assert folder.claim(made.description())
    return made, folder


def test_a_local_sweep_is_interrupted(tmp_path):
    _, folder = launched(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as front:
        folder.write("front", f"{stamp(front.pid)} {platform.node()}")
        (done,) = cancel([folder], Jobs())
        assert done.problem is None
        assert done.who.startswith("process ")
        assert front.wait(10) == -signal.SIGINT
    folder.write("front", f"{stamp(front.pid)} another-host")
    (done,) = cancel([folder], Jobs())
    assert done.problem == "it was started on another-host, where suite cancel would work"


def test_jobs_are_cancelled_and_recorded_and_a_refusal_is_told(tmp_path, monkeypatch):
    note = {"cluster": "c", "name": "n", "index": None, "minutes": 15, "nodes": 1, "timeouts": 0}
    note |= {"folder": str(tmp_path), "by": "me@there", "submitted": now()}
    folders = []
    for launch in range(3):
        _, folder = launched(tmp_path, launch)
        Submission(job_id=f"7_{launch}", **note).note(folder)
        folders.append(folder)
    asked = []

    def tool(words):
        asked.append(list(words))
        if words[0] == "squeue":
            return "7_0|RUNNING|None|n1\n7_1|PENDING|Priority|\n7_2|CANCELLED|None|\n"
        if words[0] == "scancel" and refused:
            raise CannotAskError("scancel failed: Access denied")
        return ""

    for module in (states, cancel_module):
        monkeypatch.setattr(module, "run_tool", tool)
    refused = True
    assert [one.problem for one in cancel(folders, Jobs())] == ["scancel failed: Access denied"] * 2
    assert Store(tmp_path).read("one")[0] == []
    refused = False
    assert [one.who for one in cancel(folders, Jobs())] == [f"job 7_{n} of me@there on cluster c" for n in range(2)]
    assert asked[-1] == ["scancel", "7_0", "7_1"]
    found = Store(tmp_path).read("one")[0]
    assert [(one.launch, one.status) for one in found] == [(0, "cancelled"), (1, "cancelled")]
    assert found[0].reason.startswith("cancelled by ")


@pytest.fixture
def printed(tmp_path):
    """A launch of two ranks of which both, their supervisor, and the progress have lines."""
    job, folder = launched(tmp_path)
    for rank in range(2):
        log = folder.logs / "node-0" / "run" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"hello from {rank}\nhalf a li")
    folder.submitit.mkdir()
    (folder.submitit / "12_0_log.out").write_text("supervising\n")
    folder.note_iteration(0, 0.25, 5.5)
    return job, folder


def test_lines_have_their_origin_once_each(printed):
    job, folder = printed
    logs = Logs(job, folder)
    ranks = ["rank 0 | hello from 0", "rank 1 | hello from 1"]
    progress = ["progress | iteration 0: 0.2500 s, loss 5.5000"]
    assert list(logs.lines(None)) == ["node 0 | supervising", *ranks, *progress]
    assert list(logs.lines(None)) == []
    assert list(Logs(job, folder).lines(1)) == [ranks[1], *progress]


def test_following_ends_with_the_launch_and_loses_no_half_line(printed):
    job, folder = printed

    def go_on() -> None:
        time.sleep(0.6)
        folder.note_iteration(1, 0.5, None)
        folder.note_end()

    thread = threading.Thread(target=go_on)
    thread.start()
    lines = list(Logs(job, folder).follow(0))
    thread.join()
    assert lines[0] == "rank 0 | hello from 0"
    assert set(lines[2:]) == {"rank 0 | half a li", "progress | iteration 1: 0.5000 s"}


def test_the_last_words_are_the_first_error_or_the_nodes(printed):
    _, folder = printed
    assert last_words(folder) == "the last that node 0 printed:\nsupervising"
    folder.report_error(1, {"time": 1.0, "kind": "ValueError", "message": "no", "traceback": "where", "vanished": []})
    assert last_words(folder) == "rank 1: ValueError: no\n\nwhere"
