"""A job: one launch of one point, and the folder that it leaves its traces in."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.experiment.point import Point
from suite.launch.processes import alive, stamp
from suite.records.schema import Record, Source, Status
from suite.records.store import Store


@dataclass(frozen=True)
class Job:
    """What a node needs to know to run one launch; written down before it is submitted."""

    experiment: str
    scale: str
    source: Source
    point: Point
    revision: str
    launch: int
    store: Path
    threads_per_rank: int
    device: str  # auto, cpu or cuda
    visible_devices: str | None  # CUDA_VISIBLE_DEVICES of whoever submitted

    @property
    def name(self) -> str:
        """The job's name, which has the point's id in it."""
        return f"{self.experiment}-{self.point.id}-{self.launch}"

    @property
    def point_folder(self) -> Path:
        """Where the point's records are."""
        return self.store / self.experiment / self.scale / self.source / self.point.id

    @property
    def folder(self) -> Path:
        """Where this launch keeps logs, progress and errors."""
        return self.point_folder / "jobs" / f"{self.revision}-{self.launch}"

    @property
    def record_file(self) -> Path:
        """Where this launch's record goes, unless a foreign file has the name."""
        return self.point_folder / f"{self.revision}-{self.launch}.json"

    def description(self) -> dict[str, Any]:
        """The job in plain values."""
        return {
            "name": self.name,
            "experiment": self.experiment,
            "scale": self.scale,
            "source": self.source,
            "point_id": self.point.id,
            "point": self.point.model_dump(mode="json"),
            "revision": self.revision,
            "launch": self.launch,
        }

    def record(self, status: Status, reason: str | None, started: str, **fields: Any) -> Record:
        """This launch's record."""
        return Record.model_validate(
            {
                "experiment": self.experiment,
                "scale": self.scale,
                "point_id": self.point.id,
                "source": self.source,
                "point": self.point.model_dump(mode="json"),
                "status": status,
                "reason": reason,
                "started": started,
                "finished": now(),
                **fields,
            }
        )

    def write(self, record: Record) -> Path:
        """Put the record into the store."""
        return Store(self.store).write(record, self.revision, self.launch)


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def live_job(point_folder: Path) -> "JobFolder | None":
    """A launch of a point that is under way."""
    jobs = map(JobFolder, sorted((point_folder / "jobs").glob("*")))
    return next((job for job in jobs if job.controller() is not None), None)


class JobFolder:
    """The files by which ranks, their supervisor and the front talk: progress, process ids, errors, logs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress_file = path / "progress.jsonl"
        self.board = path / "board"
        self.logs = path / "logs"
        self.submitit = path / "submitit"

    def claim(self, description: dict[str, Any]) -> bool:
        """Create the folder and write the job down in it; False where another launch has it.

        Until the job is submitted, it ends with this process.
        """
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            return False
        (self.path / "job.json").write_text(json.dumps(description, indent=1) + "\n")
        for folder in (self.logs, self.path / "ranks", self.path / "errors"):
            folder.mkdir()
        self.note_controller(os.getpid())
        return True

    def progress(self, skip: int) -> list[dict[str, Any]]:
        """The iterations finished so far, without the first `skip`."""
        try:
            lines = self.progress_file.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[skip:] if line.endswith("}")]

    def note_iteration(self, iteration: int, seconds: float, loss: float | None) -> None:
        """Add an iteration to the progress."""
        with self.progress_file.open("a") as file:
            file.write(json.dumps({"iteration": iteration, "seconds": seconds, "loss": loss}) + "\n")

    def note_controller(self, process: int) -> None:
        """Note the process that ends when the job ends."""
        draft = self.path / "controller.writing"
        draft.write_text(stamp(process))
        draft.replace(self.path / "controller")

    def controller(self) -> int | None:
        """The process that ends when the job ends, while it lives."""
        try:
            noted = (self.path / "controller").read_text()
        except OSError:
            return None
        process = int(noted.split()[0])
        return process if alive(process) and stamp(process) == noted else None

    def register(self, rank: int, process: int) -> None:
        """Note a rank's process id."""
        (self.path / "ranks" / str(rank)).write_text(str(process))

    def processes(self) -> dict[int, int]:
        """Process ids by rank, as far as they have been noted."""
        files = (self.path / "ranks").iterdir()
        return {int(file.name): int(text) for file in files if (text := file.read_text())}

    def report_error(self, rank: int, error: dict[str, Any]) -> None:
        """Leave a rank's own error."""
        (self.path / "errors" / f"{rank}.json").write_text(json.dumps({"rank": rank, **error}))

    def errors(self) -> list[dict[str, Any]]:
        """Every rank's own error, the earliest first."""
        return sorted(self._errors(), key=lambda error: error["time"])

    def _errors(self) -> Iterator[dict[str, Any]]:
        for file in (self.path / "errors").glob("*.json"):
            try:
                yield json.loads(file.read_text())
            except json.JSONDecodeError:
                continue  # the rank was ended while it wrote
