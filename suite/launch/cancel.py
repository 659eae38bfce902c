"""Ending launches that are under way, from another shell than the one that started them."""

import getpass
import os
import platform
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from suite.launch.job import Job, JobFolder
from suite.launch.slurm.settle import Jobs, record_from_outside
from suite.launch.slurm.states import CannotAskError, run_tool
from suite.launch.slurm.submission import Submission


@dataclass(frozen=True)
class Cancelled:
    """A launch that was under way: who ran it, and why it could not be ended, if so."""

    folder: JobFolder
    who: str
    problem: str | None = None


def cancel(launches: Sequence[JobFolder], points: Collection[str], jobs: Jobs) -> list[Cancelled]:
    """End what is under way of some points. A local sweep is interrupted, which keeps what it has finished.

    `launches` are those of the whole sweep: a SLURM job that runs several ends with all of them.
    """
    jobs.ask(launches)
    notes = {one: note for one in launches if (note := Submission.of(one))}
    meant = {one for one in launches if one.path.parents[1].name in points}
    ids = {notes[one].job_id for one in meant & notes.keys()} - {None}
    meant |= {one for one, note in notes.items() if note.job_id in ids}
    running = [(one, who) for one in launches if one in meant and (who := jobs.under_way(one))]
    problems = _scancel(sorted({job for one, _ in running if one in notes and (job := notes[one].job_id)}))
    done = []
    for folder, who in running:
        if folder not in notes:
            done.append(Cancelled(folder, who, _interrupt(folder)))
            continue
        note = notes[folder]
        problem = problems.get(note.job_id or "")
        if problem is None:
            _record(folder, note)
        done.append(Cancelled(folder, who, problem))
    return done


def _scancel(ids: Sequence[str]) -> dict[str, str]:
    """Cancel jobs; what SLURM says against it, by id."""
    try:
        if ids:
            run_tool(["scancel", *ids])
    except CannotAskError as error:
        said = str(error)
        named = [job for job in ids if re.search(rf"\b{job}\b", said)]  # of several, some may be another person's
        return dict.fromkeys(named or ids, said)
    return {}


def _record(folder: JobFolder, note: Submission) -> None:
    job = Job.of(folder)
    if job is None:
        return
    reason = f"cancelled by {getpass.getuser()}@{platform.node()}"
    job.write_first(record_from_outside(job, note, "cancelled", reason))


def _interrupt(folder: JobFolder) -> str | None:
    front, host = folder.front()
    if front is None:
        return f"it was started on {host}, where suite cancel would work" if host != platform.node() else None
    os.kill(front, signal.SIGINT)
    return None
