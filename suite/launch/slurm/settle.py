"""What became of the launches that SLURM was given: asked in one go, and a record for each that ended without one."""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from suite.launch.job import WISH, Job, JobFolder
from suite.launch.logs import last_words
from suite.launch.slurm import states
from suite.launch.slurm.states import CannotAskError, State
from suite.launch.slurm.submission import WARNING, Submission
from suite.measure.provenance import host_environment
from suite.records.schema import Record, Status

GRACE_SECONDS = 2.0  # in which a record that was just written becomes visible on this host
FOUND_SECONDS = 60.0  # in which a job that was just submitted becomes known


def record_from_outside(job: Job, note: Submission, status: Status, reason: str) -> Record:
    """The record of a launch whose job makes none, with what is known of the job."""
    begun = JobFolder(job.folder).attempt()
    started = begun.get("started", note.submitted)
    environment = host_environment() | {"job_id": note.job_id, "minutes": note.minutes, "cluster": note.cluster}
    environment |= {name: begun[name] for name in ("hosts", "attempt") if name in begun}
    return job.record(status, reason, started, environment=environment)


@dataclass
class Jobs:
    """SLURM's view of some launches. Every launch is asked for once, and again by `ask`."""

    known: dict[Path, State | None] = field(default_factory=dict)  # None: SLURM does not know it
    silent: dict[Path, str] = field(default_factory=dict)  # why nothing could be learned of a launch

    def ask(self, folders: Iterable[JobFolder]) -> None:
        """Ask for every launch that was submitted and has not ended. Finds the ids that nobody wrote down."""
        notes = {folder: note for folder in folders if not folder.finished and (note := Submission.of(folder))}
        for folder in notes:
            self.known[folder.path] = None
            self.silent.pop(folder.path, None)
        if not notes:
            return
        try:
            here = states.cluster_here()
            for folder, note in list(notes.items()):
                if note.slurm not in (None, here):
                    self.silent[folder.path] = f"SLURM's cluster {note.slurm} has it, and the tools here ask {here}"
                    del notes[folder]
            ids = _ids(notes)
            found = states.ask(sorted(set(ids.values())))
        except CannotAskError as error:
            self.silent.update({folder.path: str(error) for folder in notes})
            return
        self.known.update({folder.path: found.get(job) for folder, job in ids.items()})

    def state(self, folder: JobFolder) -> State | None:
        """What SLURM says of the launch."""
        if folder.path not in self.known:
            self.ask([folder])
        return self.known.get(folder.path)

    def under_way(self, folder: JobFolder) -> str | None:
        """Who runs a launch, in words; None where nobody does any more. Where SLURM is silent, its jobs run."""
        note = Submission.of(folder)
        if note is None:
            process = folder.controller()
            return None if process is None else f"process {process}"
        if folder.finished:
            return None
        state = self.state(folder)
        note = Submission.of(folder) or note  # the question may have found its id
        if folder.path in self.silent:
            return f"{note}, of which nothing can be learned here: {self.silent[folder.path]}"
        recent = state is None and note.job_id is None and note.age < FOUND_SECONDS
        return str(note) if recent or (state is not None and state.in_flight) else None

    def settle(self, folders: Iterable[JobFolder]) -> list[Path]:
        """Make the records of the launches that have ended without one; claims never submitted are given up.

        Raises OSError where a record cannot be written.
        """
        ended = self._ended_without(folders)
        if ended:
            time.sleep(GRACE_SECONDS)
            self.ask(ended)  # a job that is put back into the queue seems to have ended for a moment
            ended = self._ended_without(ended)
        made = []
        for folder in ended:
            note, job = Submission.of(folder), Job.of(folder)
            if note is None or job is None:
                continue
            if note.job_id is None:  # whoever was about to submit it was killed
                folder.withdraw()
            elif (path := job.write_first(self._record(job, folder, note))) is not None:
                made.append(path)
        return made

    def _ended_without(self, folders: Iterable[JobFolder]) -> list[JobFolder]:
        return [one for one in folders if Submission.of(one) and not one.finished and not self.under_way(one)]

    def _record(self, job: Job, folder: JobFolder, note: Submission) -> Record:
        status, reason = self._ending(folder)
        if status == "timeout":
            reason = f"{reason}; its limit was {note.minutes} min"
        words = last_words(folder)
        return record_from_outside(job, note, status, f"{reason}\n\n{words}" if words else reason)

    def _ending(self, folder: JobFolder) -> tuple[Status, str]:
        if (state := self.state(folder)) is not None:
            return state.ending()
        with suppress(OSError, ValueError, KeyError):
            name = json.loads((folder.path / WISH).read_text())["signal"]
            status: Status = "preempted" if name == WARNING else "cancelled"
            return status, f"the job was told to end by {name}, and SLURM knows it no longer"
        return states.VANISHED


def _ids(notes: Mapping[JobFolder, Submission]) -> dict[JobFolder, str]:
    """The ids of the jobs that SLURM knows, or knew. Raises CannotAskError.

    Those of jobs whose submitter was killed before it wrote them down are found by the jobs' names.
    """
    names = {note.name for note in notes.values() if note.job_id is None}
    by_name = {name: states.ids_by_name(name) for name in names}
    found = {}
    for folder, note in notes.items():
        if job := note.job_id or _newest(by_name[note.name], note.index):
            note.note_job_id(folder, job)
            found[folder] = job
    return found


def _newest(jobs: Iterable[str], index: int | None) -> str | None:
    """The newest job, or member of an array; several may have had one name."""
    fitting = [job for job in jobs if index is None or job.endswith(f"_{index}")]
    return max(fitting, key=lambda job: int(job.partition("_")[0]), default=None)
