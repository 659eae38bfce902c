"""A job: one launch of one point, and the folder that it leaves its traces in."""

import json
import os
import platform
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.experiment.point import Point
from suite.launch.processes import alive, stamp
from suite.records.schema import Record, Source, Status
from suite.records.store import Store

SILENT_SECONDS = 300.0  # after which a controller on another host counts as gone; it speaks a few times a minute


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
            "threads_per_rank": self.threads_per_rank,
            "device": self.device,
        }

    @classmethod
    def of(cls, folder: "JobFolder") -> "Job | None":
        """The job that was written down in a folder; None where its writer was killed before that."""
        try:
            known = json.loads((folder.path / "job.json").read_text())
        except OSError:
            return None
        kept = ("experiment", "scale", "source", "revision", "launch", "threads_per_rank", "device")
        fields = {name: known[name] for name in kept}
        return cls(**fields, point=Point.model_validate(known["point"]), store=folder.path.parents[5])

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
        """Put the record into the store; with it the launch has ended."""
        path = Store(self.store).write(record, self.revision, self.launch)
        JobFolder(self.folder).note_end()
        return path


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class JobFolder:
    """The files by which ranks, their supervisors and the front talk: progress, process ids, errors, logs.

    It lies where every node sees it. What concerns one node only has the node's number in its name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress_file = path / "progress.jsonl"
        self.logs = path / "logs"
        self.submitit = path / "submitit"
        self.submission_file = path / "submission.json"  # of a job that SLURM has, or is about to have

    @classmethod
    def all_of(cls, point_folder: Path) -> "list[JobFolder]":
        """The launches of a point, whatever has become of them."""
        return [cls(path) for path in sorted((point_folder / "jobs").glob("[!.]*"))]

    def board(self, node: int = 0) -> Path:
        """The file on which a node's ranks note what they are at."""
        return self.path / f"board-{node}"

    def claim(self, description: dict[str, Any]) -> bool:
        """Create the folder and write the job down in it; False where another launch has it.

        Until the job is submitted, it ends with this process.
        """
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            return False
        self.note_controller(os.getpid())
        self.write("front", f"{stamp(os.getpid())} {platform.node()}")
        (self.path / "job.json").write_text(json.dumps(description, indent=1) + "\n")
        self._make_folders()
        return True

    def _make_folders(self) -> None:
        for folder in (self.logs, self.path / "ranks", self.path / "errors", self.path / "exits"):
            folder.mkdir(exist_ok=True)

    def withdraw(self) -> None:
        """Give the claim up: nothing was started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def begin_again(self, attempt: int) -> None:
        """Put what an earlier attempt of the same job left into a folder of its own."""
        earlier = self.path / f"attempt-{attempt - 1}"
        earlier.mkdir(exist_ok=True)
        names = ("progress.jsonl", "logs", "ranks", "errors", "exits")
        for file in [*(self.path / name for name in names), *self.path.glob("board-*")]:
            with suppress(OSError):  # it had not come so far
                file.rename(earlier / file.name)
        self._make_folders()

    @property
    def finished(self) -> bool:
        """Whether the launch has its record, or had it: a record may be deleted."""
        record = self.path.parent.parent / f"{self.path.name}.json"
        return (self.path / "ended").exists() or record.exists()

    def note_end(self) -> None:
        """Note that the launch has its record."""
        with suppress(OSError):  # the folder may have been deleted, and simulated launches have none
            (self.path / "ended").touch()

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
        """Note the process of this host that ends when the job ends."""
        self.write("controller", f"{stamp(process)} {platform.node()}")

    def note_life(self) -> None:
        """Say that the controller lives, for those on other hosts who cannot see it."""
        with suppress(OSError):
            os.utime(self.path / "controller")

    def controller(self) -> int | None:
        """The process that ends when the job ends, while it lives; on another host, while it has lately said so."""
        try:
            noted = (self.path / "controller").read_text()
            age = time.time() - (self.path / "controller").stat().st_mtime
        except OSError:
            return None
        known, _, host = noted.rpartition(" ")
        process = int(known.split()[0])
        if host != platform.node():
            return process if age < SILENT_SECONDS else None
        return process if alive(process) and stamp(process) == known else None

    def front(self) -> tuple[int | None, str]:
        """The process that asked for a launch on its own host, None where it is gone or elsewhere; and that host."""
        known, _, host = (self.path / "front").read_text().rpartition(" ")
        process = int(known.split()[0])
        lives = host == platform.node() and alive(process) and stamp(process) == known
        return (process if lives else None), host

    def write(self, name: str, text: str) -> None:
        """Write one of the folder's files, which appears whole or not at all."""
        draft = self.path / f".{name}.{platform.node()}.{os.getpid()}"
        draft.write_text(text)
        draft.replace(self.path / name)

    def register(self, rank: int, process: int) -> None:
        """Note a rank's process id."""
        (self.path / "ranks" / str(rank)).write_text(str(process))

    def processes(self, ranks: Collection[int]) -> dict[int, int]:
        """Process ids by rank, of those ranks that have been noted; `ranks` are those of this host."""
        files = [self.path / "ranks" / str(rank) for rank in ranks]
        return {int(file.name): int(text) for file in files if file.exists() and (text := file.read_text())}

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
