"""Why a launch failed: the cause among what its ranks and nodes leave, and how nodes learn of each other's failure."""

import errno
import os
import signal
import subprocess
from unittest import mock

import pytest

from suite.launch import failure, other_nodes
from suite.launch.failure import cause
from suite.launch.job import JobFolder
from suite.launch.other_nodes import Exits, OtherNodes


@pytest.fixture
def job_folder(tmp_path):
    folder = JobFolder(tmp_path / "job")
    assert folder.claim({})
    assert not folder.claim({}), "a folder belongs to one launch"
    return folder


def _error(moment: float, kind: str, message: str, vanished=()) -> dict:
    text = f"Traceback (most recent call last):\n  ...\n{kind}: {message}\n"
    return {"time": moment, "kind": kind, "message": message, "traceback": text, "vanished": list(vanished)}


NODES = ["node 0"]


def exits(codes: dict[int, int], memory: str | None = None) -> dict[int, Exits]:
    return {0: Exits(codes, memory, "")}


LOST = "Connection closed by peer [127.0.0.1]:4711"


def test_the_cause_is_the_first_error_not_the_loudest(job_folder):
    job_folder.report_error(0, _error(11.0, "RuntimeError", LOST))
    job_folder.report_error(2, _error(10.0, "ValueError", "bad token"))
    job_folder.report_error(1, _error(10.5, "RuntimeError", LOST))
    status, reason = cause(job_folder, exits({0: 1}), NODES)
    assert status == "failed"
    assert reason.startswith("rank 2: ValueError: bad token\n\nTraceback")
    assert LOST not in reason


def test_a_killed_rank_is_the_cause_where_only_its_victims_left_errors(job_folder):
    job_folder.report_error(0, _error(10.0, "RuntimeError", LOST, vanished=[3]))
    job_folder.report_error(1, _error(10.1, "RuntimeError", LOST))
    status, reason = cause(job_folder, exits({0: 1}), NODES)
    assert status == "failed"
    assert reason.startswith("rank 3 was killed;")
    assert "rank 0 noticed it" in reason


def test_the_signal_is_named_where_the_supervisor_saw_it(job_folder):
    assert cause(job_folder, exits({1: -signal.SIGKILL}), NODES)[1].startswith("rank 1 was killed by SIGKILL;")
    assert cause(job_folder, exits({1: -signal.SIGSEGV}), NODES)[1].startswith("rank 1 was killed by SIGSEGV;")


def test_a_rank_that_left_its_error_before_a_signal_ended_it_is_not_called_killed(job_folder):
    job_folder.report_error(1, _error(10.0, "ValueError", "bad token"))
    assert cause(job_folder, exits({1: -signal.SIGTERM}), NODES)[1].startswith("rank 1: ValueError: bad token")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("MemoryError", ""),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_is_oom(job_folder, kind, message):
    job_folder.report_error(0, _error(10.0, kind, message))
    job_folder.report_error(1, _error(10.2, "RuntimeError", LOST))
    status, reason = cause(job_folder, exits({1: 1}), NODES)
    assert status == "oom"
    assert reason.startswith(f"rank 0: {kind}: {message}")


def test_a_torn_error_file_is_passed_over(job_folder):
    job_folder.report_error(1, _error(10.0, "ValueError", "bad token"))
    (job_folder.path / "errors" / "0.json").write_text('{"rank": 0, "time": 9.0, "ki')
    assert cause(job_folder, exits({0: 1}), NODES)[1].startswith("rank 1: ValueError: bad token")


def test_no_error_at_all_says_what_is_known(job_folder):
    status, reason = cause(job_folder, exits({0: 1, 1: 3}), NODES)
    assert status == "failed"
    assert "rank 0 exit code 1, rank 1 exit code 3" in reason
    assert "no exit code known" in cause(job_folder, exits({}), NODES)[1]


def test_what_another_node_saw_counts_and_one_that_says_nothing_is_named(job_folder):
    job_folder.report_error(0, _error(10.0, "RuntimeError", LOST))
    seen = {**exits({0: 1}), 1: Exits({3: -signal.SIGKILL}, "the job's control group was out of memory", "")}
    status, reason = cause(job_folder, seen, ["node 0", "node 1"])
    assert status == "oom"
    assert reason.startswith("the job's control group was out of memory; rank 3 was killed by SIGKILL;")
    _, reason = cause(job_folder, exits({0: 1}), ["node 0", "node 1 (n7)"])
    assert reason.startswith(
        "node 1 (n7) went away, with the task that watches the ranks there\n\nrank 0: RuntimeError"
    )


def test_where_a_launch_got_no_further_every_nodes_ranks_are_accounted_for(job_folder):
    job_folder.report_error(0, _error(10.0, "Stalled", "got no further"))
    _, reason = cause(
        job_folder, {0: Exits({0: 86}, None, "rank 0: waits"), 1: Exits({}, None, "rank 1: in F 0.0")}, []
    )
    assert reason.endswith("rank 0: waits\nrank 1: in F 0.0")


def test_ranks_end_soon_after_another_node_has_failed_even_if_they_are_stopped(job_folder, monkeypatch):
    monkeypatch.setattr(other_nodes, "LATER_SECONDS", 0.05)
    monkeypatch.setattr(other_nodes, "_LOOK_SECONDS", 0.02)
    here, there = (OtherNodes(job_folder, node, [], 2) for node in (1, 0))
    with subprocess.Popen(["sleep", "60"]) as rank, subprocess.Popen(["true"]) as gone, here.watched([2, 3]):
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        job_folder.register(2, gone.pid)
        job_folder.register(3, rank.pid)
        rank.send_signal(signal.SIGSTOP)
        assert rank.poll() is None
        there.tell(Exits({0: 1}, None, "rank 0: waits"))
        assert rank.wait(10) == -signal.SIGKILL
    assert here.ended == {3}, "what had ended by itself keeps its own exit code"
    here.tell(Exits({}, None, "rank 3: in F 0.0"))
    assert there.ask() == {1: Exits({}, None, "rank 3: in F 0.0")}


def test_processes_that_the_kernel_ended_earlier_are_not_this_launchs(tmp_path, monkeypatch):
    monkeypatch.setattr(failure, "memory_kills", lambda: {tmp_path: 3})
    assert failure.out_of_memory_since({tmp_path: 3}) is None
    assert "oom_kill 2 more" in failure.out_of_memory_since({tmp_path: 1})


def test_a_claim_that_cannot_be_written_down_leaves_nothing(tmp_path, monkeypatch):
    folder = JobFolder(tmp_path / "job")
    monkeypatch.setattr(folder, "write", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        folder.claim({})
    assert not folder.path.exists()


def test_progress_is_read_on_and_a_line_still_being_written_is_left(job_folder):
    assert job_folder.progress(0) == []
    job_folder.progress_file.write_text('{"iteration": 0}\n{"iteration": 1}\n{"itera')
    assert job_folder.progress(0) == [{"iteration": 0}, {"iteration": 1}]
    assert job_folder.progress(1) == [{"iteration": 1}]
    assert job_folder.progress(2) == []
