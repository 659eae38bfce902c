"""What SLURM's tools print, and what becomes of it: a state each, and for every ending a record's status and reason."""

import json
from pathlib import Path

import pytest
from layouts import point

from suite.launch.job import Job, JobFolder, now
from suite.launch.slurm import settle, states
from suite.launch.slurm.settle import Jobs
from suite.launch.slurm.states import CannotAskError, State
from suite.launch.slurm.submission import Submission
from suite.records.store import Store

# As sacct -n -X -P -o JobID,State,NodeList,ExitCode and squeue -h -r -o %i|%T|%r|%N printed it.
SACCT = """\
101|COMPLETED|n1|0:0
102|FAILED|n[1-2]|3:0
103|CANCELLED by 1000|n1|0:15
104|TIMEOUT|n1|0:0
105|NODE_FAIL|n[1-2]|1:0
106|OUT_OF_MEMORY|n1|0:125
107|PREEMPTED|n1|0:0
108|BOOT_FAIL|n3|0:0
109|DEADLINE|None assigned|0:0
110|REVOKED|None assigned|0:0
111|REQUEUED|n1|0:0
111|TIMEOUT|n2|0:0
112_3|FAILED|n1|1:0
112_[4-5,7%2]|PENDING|None assigned|0:0
113|LAUNCH_FAILED|n1|0:0
"""
ENDINGS = {
    "101": ("failed", "the job ended and left no record (SLURM says COMPLETED, nodes n1)"),
    "102": ("failed", "exit code 3:0, nodes n[1-2]"),
    "103": ("cancelled", "SLURM says CANCELLED"),
    "104": ("timeout", "its limit was 15 min"),
    "105": ("failed", "a node of the job failed (SLURM says NODE_FAIL"),
    "106": ("oom", "ran out of host memory"),
    "107": ("preempted", "did not put it back into the queue"),
    "108": ("failed", "could not be booted"),
    "109": ("timeout", "hit its deadline (SLURM says DEADLINE)"),
    "110": ("cancelled", "another cluster of the federation took it"),
    "111": ("timeout", "nodes n2"),
    "112_3": ("failed", "exit code 1:0"),
    "113": ("failed", "could not be started"),
    "999": ("failed", "SLURM knows it no longer"),
}
FLYING = {
    "201": ("PENDING", "Resources"),
    "202": ("RUNNING", "None"),
    "203": ("COMPLETING", "None"),
    "204": ("REQUEUE_HOLD", "launch failed requeued held"),
    "205": ("SUSPENDED", "None"),
    "206_1": ("CONFIGURING", "None"),
    "207": ("PENDING", "JobHeldUser"),
}


@pytest.fixture
def slurm(monkeypatch):
    """Tools that answer from recordings: squeue of what runs, sacct of what has ended."""

    def tool(words):
        if words[0] == "sacct":
            return SACCT
        if words[0] == "squeue":
            return "".join(f"{job}|{word}|{why}|n1\n" for job, (word, why) in FLYING.items())
        raise AssertionError(words)

    monkeypatch.setattr(states, "run_tool", tool)
    monkeypatch.setattr(settle, "GRACE_SECONDS", 0)


def launched(store: Path, job_id: str | None, launch: int = 0, **changed) -> JobFolder:
    """A launch's folder as it is after it was submitted."""
    made = Job("one", "laptop", "measured", point((1, 2, 1)), "abc", launch, store, 1, "cpu")
    folder = JobFolder(made.folder)
    assert folder.claim(made.description())
    note = {"cluster": "c", "name": "batch", "index": None, "minutes": 15, "nodes": 1, "timeouts": 0, "by": "me@there"}
    note |= {"folder": str(store / "logs"), "submitted": "2026-01-01T00:00:00+00:00", **changed}
    Submission(job_id=job_id, **note).note(folder)
    return folder


@pytest.mark.parametrize("job_id", ENDINGS)
def test_every_ending_is_a_record_with_its_reason(slurm, tmp_path, job_id):
    folder = launched(tmp_path, job_id)
    (made,) = Jobs().settle([folder])
    (record,), problems = Store(tmp_path).read("one")
    assert problems == []
    status, words = ENDINGS[job_id]
    assert record.status == status
    assert words in record.reason
    assert record.file == str(made)
    assert record.environment["job_id"] == job_id
    assert Jobs().settle([folder]) == [], "it has its record"
    made.unlink()
    assert Jobs().settle([folder]) == [], "a record that somebody deleted is not made again"


@pytest.mark.parametrize("job_id", [*FLYING, "112_4", "112_5", "112_7"])
def test_what_may_yet_run_is_left_alone(slurm, tmp_path, job_id):
    folder = launched(tmp_path, job_id)
    jobs = Jobs()
    assert jobs.settle([folder]) == []
    assert jobs.under_way(folder) == f"job {job_id} of me@there on cluster c"
    assert jobs.state(folder).held == (job_id in ("204", "207"))
    assert jobs.state(folder).waits == (job_id not in ("202", "203", "205"))


def test_the_reason_has_the_error_of_the_rank_that_failed_first_or_what_the_nodes_printed(slurm, tmp_path):
    first, second = launched(tmp_path, "102"), launched(tmp_path, "104", 1)
    for rank, moment in ((1, 2.0), (3, 1.0)):
        error = {"time": moment, "kind": "RuntimeError", "message": f"of {rank}", "traceback": "lines", "vanished": []}
        first.report_error(rank, error)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "104_1_log.out").write_text("first\nlast\n")
    Jobs().settle([first, second])
    reasons = {record.launch: record.reason for record in Store(tmp_path).read("one")[0]}
    assert reasons[0].splitlines()[2] == "rank 3: RuntimeError: of 3"
    assert reasons[1].splitlines()[2:] == ["the last that node 1 printed:", "first", "last"]


def test_a_job_that_was_told_to_end_and_is_forgotten_was_cancelled(slurm, tmp_path):
    folder = launched(tmp_path, "999")
    folder.write("wish.json", json.dumps({"signal": "SIGTERM"}))
    Jobs().settle([folder])
    assert Store(tmp_path).read("one")[0][0].status == "cancelled"


def test_an_id_that_nobody_wrote_down_is_found_by_the_jobs_name(slurm, tmp_path):
    folder = launched(tmp_path, None, index=1, name="batch")
    assert Jobs().under_way(folder) == "job 206_1 of me@there on cluster c"
    assert Submission.of(folder).job_id == "206_1"


def test_a_claim_that_was_never_submitted_is_given_up_after_a_while(slurm, tmp_path, monkeypatch):
    folder = launched(tmp_path, None, index=9, submitted=now())
    jobs = Jobs()
    assert jobs.settle([folder]) == []
    assert "on cluster c" in jobs.under_way(folder), "its submitter may be at it"
    old = launched(tmp_path, None, 1, index=9)
    assert Jobs().settle([old]) == []
    assert not old.path.exists()


def test_where_slurm_gives_no_answer_its_jobs_run(tmp_path, monkeypatch):
    def silent(words):
        raise CannotAskError("squeue is not on this host")

    monkeypatch.setattr(states, "run_tool", silent)
    folder = launched(tmp_path, "101")
    jobs = Jobs()
    assert jobs.settle([folder]) == []
    assert jobs.under_way(folder).endswith("of which nothing can be learned here: squeue is not on this host")


def test_an_unknown_id_is_no_fault_and_another_complaint_is(monkeypatch):
    said = "squeue failed: slurm_load_jobs error: Invalid job id specified"

    def tool(words):
        if words[0] == "squeue":
            raise CannotAskError(said)
        return ""

    monkeypatch.setattr(states, "run_tool", tool)
    assert states.ask(["7"]) == {}
    said = "squeue failed: slurm_load_jobs error: Unable to contact slurm controller"
    with pytest.raises(CannotAskError, match="Unable to contact"):
        states.ask(["7"])


def test_an_unknown_word_is_an_ending():
    assert State("SOMETHING_NEW").ending() == ("failed", "the job ended (SLURM says SOMETHING_NEW)")
