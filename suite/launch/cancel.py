"""Ending launches that are under way, from another shell than the one that started them."""

import getpass
import os
import platform
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from suite.launch.job import Job, JobFolder
from suite.launch.slurm.settle import Jobs
from suite.launch.slurm.states import CannotAskError, run_tool
from suite.launch.slurm.submission import Submission
from suite.measure.provenance import host_environment


@dataclass(frozen=True)
class Cancelled:
    """A launch that was under way: who ran it, and why it could not be ended, if so."""

    folder: JobFolder
    who: str
    problem: str | None = None


def cancel(folders: Sequence[JobFolder], jobs: Jobs) -> list[Cancelled]:
    """End every launch that is under way. A local sweep is interrupted, which keeps what it has finished.

    A SLURM job that runs several launches ends with all of them.
    """
    running = [(folder, who) for folder in folders if (who := jobs.under_way(folder))]
    notes = {folder: note for folder, _ in running if (note := Submission.of(folder))}
    problem = _scancel(sorted({note.job_id for note in notes.values() if note.job_id}))
    done = []
    for folder, who in running:
        if folder not in notes:
            done.append(Cancelled(folder, who, _interrupt(folder)))
            continue
        if problem is None:
            _record(folder, notes[folder])
        done.append(Cancelled(folder, who, problem))
    return done


def _scancel(ids: list[str]) -> str | None:
    try:
        if ids:
            run_tool(["scancel", *ids])
    except CannotAskError as error:
        return str(error)
    return None


def _record(folder: JobFolder, note: Submission) -> None:
    job = Job.of(folder)
    if job is None or folder.finished:
        return
    reason = f"cancelled by {getpass.getuser()}@{platform.node()}"
    environment = {**host_environment(), "job_id": note.job_id, "cluster": note.cluster}
    job.write(job.record("cancelled", reason, note.submitted, environment=environment))


def _interrupt(folder: JobFolder) -> str | None:
    front, host = folder.front()
    if front is None:
        return f"it was started on {host}, where suite cancel would work" if host != platform.node() else None
    os.kill(front, signal.SIGINT)
    return None
