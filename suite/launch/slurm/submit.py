"""Handing launches to SLURM through submitit: one job a launch, jobs of one shape in one array.

Before sbatch is called, every launch's folder says under which name it is about to be submitted. Whoever comes later
finds the job by that name, even if the submitting process was killed before it learned the job's id.
"""

import getpass
import os
import platform
import re
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from suite.experiment.submission import Slurm
from suite.launch.job import Job, JobFolder, now
from suite.launch.slurm.shape import Shape
from suite.launch.slurm.states import CannotAskError, run_tool
from suite.launch.slurm.submission import Submission

WARNING_SECONDS = 90  # before its limit a job is warned; less where the limit is short
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")  # which SLURM to talk to, not which job this is


class RefusedError(Exception):
    """SLURM did not take a job. The message is a sentence for the person who submitted it."""


@dataclass(frozen=True)
class Member:
    """What one job runs: some launches, one after another; what it asked for, and how often that was too short."""

    jobs: tuple[Job, ...]
    cluster: str
    slurm: Slurm
    shape: Shape
    timeouts: int = 0

    @property
    def warning_seconds(self) -> int:
        """How long before its limit the job is warned."""
        return min(WARNING_SECONDS, self.shape.minutes * 20)


@dataclass(frozen=True)
class Submitted:
    """One array, or one job: SLURM's id, its name, and what was submitted."""

    job_id: str
    name: str
    members: tuple[Member, ...]

    def __str__(self) -> str:
        launches = sum(len(member.jobs) for member in self.members)
        what = "1 job" if len(self.members) == 1 else f"an array of {len(self.members)} jobs"
        return f"job {self.job_id}: {what} of {self.members[0].shape}, {launches} launch(es), name {self.name}"


def submit(members: Sequence[Member]) -> Iterator[Submitted]:
    """Submit jobs of one shape, in as few arrays as the cluster takes. Raises RefusedError."""
    step = members[0].slurm.max_array
    for start in range(0, len(members), step):
        yield _array(tuple(members[start : start + step]))


def check(member: Member) -> None:
    """Ask SLURM whether it would take such a job, without submitting it. Raises RefusedError."""
    with tempfile.TemporaryDirectory() as folder, _refusals(member), _outside():
        script = Path(folder) / "script.sh"
        script.write_text(script_of(member, Path(folder)))
        run_tool(["sbatch", "--test-only", str(script)])


def script_of(member: Member, folder: Path) -> str:
    """The batch script that submitit makes for such a job."""
    slurm_executor = _executor(member, "check", folder)._executor
    return str(slurm_executor._make_submission_file_text("true", "check"))  # type: ignore[attr-defined]


def _array(members: tuple[Member, ...]) -> Submitted:
    first = members[0].jobs[0]
    alone = len(members) == 1 and len(members[0].jobs) == 1
    name = first.name if alone else f"{first.experiment}-{uuid.uuid4().hex[:8]}"
    folder = first.store / first.experiment / ".slurm" / f"{name}-{uuid.uuid4().hex[:4]}"
    notes: list[list[tuple[JobFolder, Submission]]] = [[] for _ in members]
    for index, member in enumerate(members):
        for job in member.jobs:
            made = Submission(
                cluster=member.cluster,
                name=name,
                index=None if len(members) == 1 else index,
                job_id=None,
                minutes=member.shape.minutes,
                nodes=member.shape.nodes,
                timeouts=member.timeouts,
                folder=str(folder),
                by=f"{getpass.getuser()}@{platform.node()}",
                submitted=now(),
            )
            notes[index].append((where := JobFolder(job.folder), made))
            made.note(where)
    from suite.launch.slurm.task import run_task  # which submits too, when a job needs more time

    with _refusals(members[0]), _outside():
        executor = _executor(members[0], name, folder)
        handles: list[submitit.Job[Any]]
        if len(members) == 1:
            handles = [executor.submit(run_task, members[0])]
        else:
            with executor.batch():
                handles = [executor.submit(run_task, member) for member in members]
        ids = [handle.job_id for handle in handles]
    for noted, job_id in zip(notes, ids, strict=True):
        for where, made in noted:
            made.note_job_id(where, job_id)
    return Submitted(ids[0].partition("_")[0], name, members)


def _executor(member: Member, name: str, folder: Path) -> submitit.AutoExecutor:
    slurm, shape = member.slurm, member.shape
    container = slurm.container
    python = container.python if container else slurm.python
    cpus = shape.ranks_per_node * slurm.cpus_per_rank
    gpus = shape.ranks_per_node * slurm.gpus_per_rank
    scratch = [f"export TMPDIR={slurm.scratch}"] if slurm.scratch else []
    wanted = {
        "gpus_per_node": gpus or None,
        "mem_gb": slurm.mem_gb,
        "slurm_partition": slurm.partition,
        "slurm_account": slurm.account,
        "slurm_qos": slurm.qos,
        "slurm_constraint": slurm.constraint,
        "slurm_exclusive": slurm.exclusive or None,
    }
    made = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_python=python)
    made.update_parameters(
        name=name,
        timeout_min=shape.minutes,
        nodes=shape.nodes,
        tasks_per_node=1,
        cpus_per_task=cpus,
        stderr_to_stdout=True,
        slurm_array_parallelism=slurm.max_running,
        slurm_signal_delay_s=member.warning_seconds,
        slurm_setup=[*scratch, *slurm.setup],
        slurm_additional_parameters={"requeue" if slurm.retries else "no-requeue": True, **slurm.extra},
        # Old versions of srun do not take the number of processors from the job.
        slurm_srun_args=[
            "--kill-on-bad-exit=1",
            f"--cpus-per-task={cpus}",
            *(container.srun_arguments() if container else []),
            *slurm.srun,
        ],
        **{key: value for key, value in wanted.items() if value is not None},
    )
    return made


@contextmanager
def _outside() -> Iterator[None]:
    """An environment as if this process were in no job, so that a job submitted from inside of one is the same."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with clean_env():
        os.environ.update(kept)
        yield


@contextmanager
def _refusals(member: Member) -> Iterator[None]:
    """Turn what submitit and sbatch complain of into one sentence."""
    try:
        yield
    except (FailedSubmissionError, FailedJobError, CannotAskError, OSError, RuntimeError) as error:
        raise RefusedError(_sentence(str(error), member)) from error


def _sentence(text: str, member: Member) -> str:
    where = f"cluster {member.cluster}"
    if "is not on this host" in text or "Could not detect" in text or "No such file or directory: 'sbatch'" in text:
        return f"{where}: sbatch is not on this host; a login node of the cluster, or --on local, would work"
    said = "; ".join(dict.fromkeys(re.findall(r"(?:sbatch|srun): error: (.+)", text))) or text.strip().splitlines()[-1]
    lower = text.lower()
    if "munge" in lower or "authentication" in lower or "zero bytes were transmitted" in lower:
        return f"{where}: SLURM's authentication fails ({said}); a running munged with the cluster's key would work"
    if "contact slurm controller" in lower:
        return f"{where}: SLURM's controller does not answer ({said}); try again when `scontrol ping` says it is up"
    if "partition" in lower:
        given = f"slurm.partition={member.slurm.partition}" if member.slurm.partition else "no slurm.partition is given"
        return f"{where}: {given}: {said}; partitions there: {_partitions()}"
    return f"{where}: sbatch refused a job of {member.shape}: {said}"


def _partitions() -> str:
    try:
        return ", ".join(sorted(set(run_tool(["sinfo", "-h", "-o", "%R"]).split())))
    except CannotAskError:
        return "unknown, sinfo gave no answer"
