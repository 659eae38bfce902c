"""What became of the launches that SLURM was given: asked in one go, and a record for each that ended without one."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from suite.launch.job import Job, JobFolder
from suite.launch.logs import last_words
from suite.launch.slurm import states
from suite.launch.slurm.states import CannotAskError, State
from suite.launch.slurm.submission import Submission
from suite.measure.provenance import host_environment
from suite.records.schema import Record, Status

GRACE_SECONDS = 2.0  # in which a record that was just written becomes visible on this host
FOUND_SECONDS = 60.0  # in which a job that was just submitted becomes known
_BY_HAND = "the job was cancelled: it was told to end, and SLURM knows it no longer"


@dataclass
class Jobs:
    """SLURM's view of some launches. Every launch is asked for once, and again by `ask`."""

    known: dict[Path, State | None] = field(default_factory=dict)  # None: SLURM does not know it
    silent: str | None = None  # why SLURM gave no answer

    def ask(self, folders: Iterable[JobFolder]) -> None:
        """Ask for every launch that was submitted and has not ended. Finds the ids that nobody wrote down."""
        notes = {folder: note for folder in folders if not folder.finished and (note := Submission.of(folder))}
        self.silent = None
        try:
            ids = {folder: note.job_id or _found_id(folder, note) for folder, note in notes.items()}
            found = states.ask(sorted({job for job in ids.values() if job}))
        except CannotAskError as error:
            self.silent = str(error)
            self.known.update({folder.path: None for folder in notes})
            return
        self.known.update({folder.path: found.get(job or "") for folder, job in ids.items()})

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
        if self.silent is not None:
            return f"{note}, of which nothing can be learned here: {self.silent}"
        recent = state is None and note.job_id is None and note.age < FOUND_SECONDS
        return str(note) if recent or (state is not None and state.in_flight) else None

    def settle(self, folders: Iterable[JobFolder]) -> list[Path]:
        """Make the records of the launches that have ended without one; claims never submitted are given up."""
        ended = [one for one in folders if Submission.of(one) and not one.finished and not self.under_way(one)]
        if ended:
            time.sleep(GRACE_SECONDS)
        made = []
        for folder in ended:
            note, job = Submission.of(folder), Job.of(folder)
            if folder.finished or note is None or job is None:
                continue
            if note.job_id is None:  # whoever was about to submit it was killed
                folder.withdraw()
                continue
            made.append(job.write(self._record(job, folder, note)))
        return made

    def _record(self, job: Job, folder: JobFolder, note: Submission) -> Record:
        status, reason = self._ending(folder)
        if status == "timeout":
            reason = f"{reason}; its limit was {note.minutes} min"
        words = last_words(folder)
        environment = {**host_environment(), "job_id": note.job_id, "cluster": note.cluster}
        return job.record(status, f"{reason}\n\n{words}" if words else reason, note.submitted, environment=environment)

    def _ending(self, folder: JobFolder) -> tuple[Status, str]:
        if (state := self.state(folder)) is not None:
            return state.ending()
        return ("cancelled", _BY_HAND) if (folder.path / "wish.json").exists() else states.VANISHED


def _found_id(folder: JobFolder, note: Submission) -> str | None:
    """The id of a job whose submitter was killed before it wrote the id down; the newest of that name."""
    index = note.index
    fitting = [job for job in states.ids_by_name(note.name) if index is None or job.endswith(f"_{index}")]
    if not fitting:
        return None
    newest = max(fitting, key=lambda job: int(job.partition("_")[0]))
    note.note_job_id(folder, newest)
    return newest
