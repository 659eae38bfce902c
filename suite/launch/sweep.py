"""A sweep on this machine: running what is missing, one launch after another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.launch.claim import Claims
from suite.launch.job import Job, now
from suite.launch.local import LocalJob
from suite.launch.processes import uninterrupted
from suite.launch.slurm.settle import Jobs
from suite.launch.todo import Todo, record_invalid
from suite.measure.provenance import host_environment
from suite.records.schema import Record, Source
from suite.records.store import StoredRecord, load


class Watcher(Protocol):
    """Whoever shows the sweep's progress."""

    def start(self, job: Job) -> None:
        """A launch begins."""

    def skip(self, point: Point, launches: int, why: str) -> None:
        """Launches of a point are left out: another sweep measures it."""

    def iteration(self, job: Job, samples: dict[str, Any]) -> None:
        """The launch has finished an iteration."""

    def end(self, job: Job, record: Record) -> None:
        """The launch has its record."""


@dataclass(frozen=True)
class LocalSweep:
    """Where a sweep's records go and what its ranks run on."""

    experiment: str
    scale: str
    source: Source  # measured or emulated
    store: Path
    cluster: Callable[[str], Cluster]  # the profile by name

    def run(self, work: Todo, watcher: Watcher) -> Iterator[tuple[Job, Record]]:
        """Run what is missing, one launch after another; yields each launch with its record.

        A launch that fails is a record with its reason. A point that another sweep measures at the same time is left
        to it. On an interrupt the running launch is ended and becomes a `cancelled` record; what was finished before
        stays.
        """
        for planned in work.invalid:
            record_invalid(planned, self.experiment, self.scale, self.source, self.store)
        claims = Claims(self.experiment, self.scale, self.source, self.store, Jobs().under_way)
        found = {point.id: claims.ok_files(point) for point, _ in work.missing}
        for point, count in work.missing:
            for done in range(count):
                job = claims.take(point, self.cluster(point.cluster), found[point.id])
                if isinstance(job, str):
                    watcher.skip(point, count - done, job)
                    break
                record = self._launch(job, watcher)
                found[point.id].add(Path(record.file))
                yield job, record

    def _launch(self, job: Job, watcher: Watcher) -> StoredRecord:
        started = now()
        watcher.start(job)
        running = LocalJob(job)
        seen, stalled = 0, None
        try:
            running.start()
            for _ in running.wait():
                running.note_life()
                for samples in running.folder.progress(seen):
                    seen += 1
                    watcher.iteration(job, samples)
                if stalled := running.stalled():
                    running.cancel()
                    break
        except KeyboardInterrupt:
            with uninterrupted():
                running.cancel()
                if running.record_path() is None:
                    job.write(job.record("cancelled", "interrupted", started, environment=host_environment()))
            raise
        path = running.record_path()
        if path is None:
            reason = stalled or running.why_no_record()
            path = job.write(job.record("failed", reason, started, environment=host_environment()))
        record = load(path, path.relative_to(job.store))
        if isinstance(record, str):
            raise RuntimeError(f"{path}: {record}")
        watcher.end(job, record)
        return record
