"""What a launch's folder says of its submission to SLURM; written before sbatch is called."""

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from suite.launch.job import JobFolder


@dataclass(frozen=True)
class Submission:
    """Under which name a launch was submitted, or is about to be, and what was asked for."""

    cluster: str
    name: str
    index: int | None  # in the array; None of a job that is none
    job_id: str | None  # None until SLURM has answered
    minutes: int
    nodes: int
    timeouts: int  # jobs for this point that have hit their limit before
    folder: str  # where submitit keeps the script and what the nodes print
    by: str  # user@host
    submitted: str  # ISO 8601

    @classmethod
    def of(cls, folder: JobFolder) -> Self | None:
        """The submission of a launch; None of one that SLURM was not given."""
        try:
            return cls(**json.loads(folder.submission_file.read_text()))
        except OSError:
            return None

    def note(self, folder: JobFolder) -> None:
        """Write it into the launch's folder."""
        folder.write("submission.json", json.dumps(asdict(self), indent=1))

    def note_job_id(self, folder: JobFolder, job_id: str) -> Self:
        """Write down under which id SLURM has the launch."""
        known = replace(self, job_id=job_id)
        if known != self:
            known.note(folder)
        return known

    @property
    def age(self) -> float:
        """Seconds since the submission."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.submitted)).total_seconds()

    def __str__(self) -> str:
        return f"job {self.job_id or self.name} of {self.by} on cluster {self.cluster}"

    def node_logs(self) -> list[tuple[int, Path]]:
        """What each node's supervisor prints, by node."""
        found = sorted(Path(self.folder).glob(f"{self.job_id or '*'}_*_log.out"))
        return [(int(file.name.removesuffix("_log.out").rpartition("_")[2]), file) for file in found]
