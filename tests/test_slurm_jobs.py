"""Jobs for SLURM without one: what a refusal says, and what a job makes of the signals that it gets."""

import signal
import subprocess
from dataclasses import replace

import pytest
from command import call
from layouts import point
from pydantic import ValidationError

from suite.experiment.submission import Slurm
from suite.launch.job import Job, JobFolder
from suite.launch.slurm import submit, task
from suite.launch.slurm.shape import Shape
from suite.launch.slurm.submit import Member, RefusedError, script_of
from suite.launch.slurm.task import _Task
from suite.records.store import Store

SLURM = Slurm(ranks_per_node=2, gpus_per_rank=0, retries=2)


def member(store, minutes: int = 15, launches: int = 1, **changed) -> Member:
    """What a job of one node runs, with the folders of its launches."""
    jobs = tuple(Job("one", "laptop", "measured", point((1, 1, 1)), "abc", n, store, 1, "cpu") for n in range(launches))
    for job in jobs:
        assert JobFolder(job.folder).claim(job.description())
    slurm = SLURM.model_copy(update=changed)
    return Member(jobs, "there", slurm, Shape(1, 1, minutes))


# What a refusal says


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "sbatch: unrecognized option '--nonsense=3'\nTry \"sbatch --help\" for more information",
            "sbatch refused a job of 1 node of 1 rank, 15 min, with slurm.extra={'nonsense': 3}: "
            "unrecognized option '--nonsense=3'",
        ),
        ("sbatch failed: allocation failure: Invalid feature specification", ": Invalid feature specification"),
        (
            "sbatch: error: Batch job submission failed: Invalid qos specification",
            ": Batch job submission failed: Invalid qos specification",
        ),
        (
            "sbatch failed: allocation failure: Unable to contact slurm controller (connect failure)",
            "controller does not answer (Unable to contact slurm controller (connect failure)); try again when",
        ),
    ],
)
def test_a_refusal_is_slurms_own_reason_and_what_was_asked_for(tmp_path, text, said):
    asked = member(tmp_path, extra={"nonsense": 3})
    with pytest.raises(RefusedError, match=r"^cluster there: ") as refusal, submit._refusals(asked):
        raise RuntimeError(text)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("flag", "rule"),
    [
        ({"cpus_per_task": 3}, "cpus-per-task is set by the suite"),
        ({"parsable": True}, "with parsable sbatch does not simply submit"),
        ({"hold": False}, "hold is false"),
    ],
)
def test_flags_that_would_make_sbatch_do_something_else_are_refused(flag, rule):
    with pytest.raises(ValidationError, match=rule):
        Slurm(ranks_per_node=1, extra=flag)


def test_a_scratch_folder_may_have_spaces_and_variables_in_its_name(tmp_path):
    script = script_of(member(tmp_path, scratch="/local/my scratch/$SLURM_JOB_ID"), tmp_path)
    line = next(line for line in script.splitlines() if line.startswith("export TMPDIR"))
    said = subprocess.run(["bash", "-c", f"SLURM_JOB_ID=7; {line}; printenv TMPDIR"], capture_output=True, text=True)
    assert said.stdout == "/local/my scratch/7\n"


def test_the_interpreter_starts_deaf_to_what_would_end_it(tmp_path):
    started = submit._executor(member(tmp_path, python="bash"), "name", tmp_path)._executor.python
    script = "kill -USR2 $$; kill -TERM $$; echo lives"
    said = subprocess.run(f"{started} -c '{script}'", shell=True, capture_output=True, text=True)
    assert said.stdout == "lives\n"


# What a signal means


@pytest.fixture
def in_slurm(monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    for name, value in (("JOB_ID", "7"), ("NODEID", "0"), ("JOB_NODELIST", "n1"), ("JOB_PARTITION", "main")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "RESTART_COUNT"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)


@pytest.mark.parametrize(
    ("number", "minutes", "seconds", "preempting", "meant"),
    [
        (signal.SIGUSR2, 15, 10, False, "_preempted"),  # much too early for the limit
        (signal.SIGUSR2, 15, 800, False, "_time_is_up"),
        (signal.SIGUSR2, 15, 800, True, "_preempted"),
        (signal.SIGUSR2, 2, 10, True, "_preempted"),
        (signal.SIGUSR2, 1, 10, False, "_time_is_up"),
        (signal.SIGTERM, 15, 10, True, "_preempted"),
        (signal.SIGTERM, 15, 10, False, "_note_wish"),
    ],
)
def test_what_a_signal_means(in_slurm, tmp_path, monkeypatch, number, minutes, seconds, preempting, meant):
    done = []
    for name in ("_preempted", "_time_is_up", "_note_wish"):
        monkeypatch.setattr(_Task, name, lambda self, left, *rest, name=name: done.append(name))
    monkeypatch.setattr(task, "being_preempted", lambda job: preempting)
    asked = member(tmp_path, minutes)
    _Task(asked).end(asked.jobs, number, seconds)
    assert done == [meant]


def test_with_its_new_starts_used_up_a_preempted_job_says_so_of_all_that_it_has_left(in_slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    asked = member(tmp_path, launches=2)
    _Task(asked)._preempted(asked.jobs)
    found, _ = Store(tmp_path).read("one")
    assert [one.status for one in found] == ["preempted"] * 2
    assert found[0].reason == (
        "the job was preempted after 2 new start(s); the profile of cluster there allows slurm.retries=2"
    )
    assert (found[0].environment["attempt"], found[0].environment["job_id"]) == (2, "7")


@pytest.mark.parametrize(
    ("changed", "timeouts", "refused", "words", "claimed"),
    [
        ({}, 0, None, "time limit of 15 min; submitted again as job 8 with 30 min", 2),
        ({}, 2, None, "time limit of 15 min, after 2 shorter ones; the profile of cluster there allows", 1),
        ({"max_minutes": 15}, 0, None, "which is slurm.max_minutes of cluster there", 1),
        ({}, 0, "no sbatch", "not submitted again, which suite run with --time 30 would do: no sbatch", 1),
    ],
)
def test_a_time_limit_gets_twice_the_time_as_long_as_that_is_allowed(
    in_slurm, tmp_path, monkeypatch, changed, timeouts, refused, words, claimed
):
    def again(members):
        if refused:
            raise RefusedError(refused)
        yield submit.Submitted("8", "name", tuple(members))

    monkeypatch.setattr(task, "submit", again)
    asked = replace(member(tmp_path, **changed), timeouts=timeouts)
    _Task(asked)._time_is_up(asked.jobs)
    ((record,), _) = Store(tmp_path).read("one")
    assert record.status == "timeout"
    assert words in record.reason
    assert len(JobFolder.all_of(asked.jobs[0].point_folder)) == claimed


def test_a_launch_begins_again_without_what_the_earlier_attempt_left(in_slurm, tmp_path, monkeypatch):
    asked = member(tmp_path)
    folder = JobFolder(asked.jobs[0].folder)
    _Task(asked)._begin(folder)
    folder.note_iteration(0, 1.0, None)
    folder.write("wish.json", "{}")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    _Task(asked)._begin(folder)
    assert folder.progress(0) == []
    assert not (folder.path / "wish.json").exists()
    assert (folder.path / "attempt-0" / "progress.jsonl").exists()


def test_a_launch_whose_folder_is_gone_does_not_lose_the_jobs_others(in_slurm, tmp_path, monkeypatch):
    asked = member(tmp_path, launches=2)
    JobFolder(asked.jobs[0].folder).withdraw()
    monkeypatch.setattr(task, "node_record", lambda job, place: job.record("ok", None, "2026-01-01T00:00:00+00:00"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        task.run_task(asked)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    found, _ = Store(tmp_path).read("one")
    assert [one.status for one in found] == ["failed", "ok"]
    assert "No such file or directory" in found[0].reason


# What is said before anything is submitted


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A working folder with a profile and a sweep of two points of one rank and one of two."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm" / "clusters").mkdir(parents=True)
    profile = "name: there\nmax_ranks: 4\nslurm: {ranks_per_node: 2, gpus_per_rank: 0, max_minutes: 60}\n"
    (tmp_path / "slurm" / "clusters" / "there.yaml").write_text(profile)
    cases = "[{training.seed: 1}, {training.seed: 2}, {parallel.pipeline: 2}]"
    tiny = "{layers: 2, hidden_size: 16, heads: 2, vocab_size: 64, seq_length: 8}"
    text = f"name: one\nmodel: {tiny}\ntraining: {{global_batch: 4}}\ncluster: there\nsweep: {{cases: {cases}}}\n"
    (tmp_path / "one.yaml").write_text(text)
    return tmp_path


def test_a_dry_run_shows_the_jobs_that_would_be_submitted(sweep):
    answer = call("run", "one.yaml", "--on", "slurm", "--dry-run")
    assert "cluster there: 2 launch(es) in 2 job(s), each on 1 node of 1 rank, 30 min" in answer.out
    answer = call("run", "one.yaml", "--on", "slurm", "--dry-run", "--together", "--time", "45")
    assert "cluster there: 2 launch(es) in 1 job(s), each on 1 node of 1 rank, 45 min" in answer.out
    assert "cluster there: 1 launch(es) in 1 job(s), each on 1 node of 2 ranks, 45 min" in answer.out
    assert not (sweep / "results").exists()
    answer = call("run", "one.yaml", "--on", "slurm", "--dry-run", "--time", "90")
    assert (answer.code, "--time 60 would work" in answer.err) == (2, True)


def test_what_to_type_next_is_about_the_same_sweep(sweep):
    answer = call("logs", "one.yaml", "training.seed=1", "--on", "slurm", "--cluster", "there", "--results", "my runs")
    assert answer.code == 3
    words = "suite run one.yaml training.seed=1 --on slurm --cluster there --results 'my runs' makes some"
    assert words in answer.err
