"""A sweep on this machine: which launches are missing, and running them one after another."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from suite.experiment.cluster import Cluster
from suite.experiment.expansion import Planned
from suite.experiment.point import Point
from suite.launch.claim import Claims
from suite.launch.inputs import Inputs
from suite.launch.job import Job, now
from suite.launch.local import LocalJob
from suite.launch.processes import uninterrupted
from suite.launch.slurm.settle import Jobs
from suite.measure.provenance import host_environment, revision
from suite.records.schema import Record, Source
from suite.records.store import Store, StoredRecord, load


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
class Todo:
    """What a sweep has to do: launches per point, and what is there already."""

    missing: list[tuple[Point, int]]  # a point and how many launches it lacks
    present: list[Point]
    invalid: list[Planned]
    elsewhere: list[tuple[Point, str]]  # a point that is missing though it has records, and what those were measured on

    @property
    def launches(self) -> int:
        """Launches to run."""
        return sum(count for _, count in self.missing)


def todo(points: Sequence[Planned], records: Sequence[StoredRecord], fresh: bool) -> Todo:
    """A point is present when its launches are there with status ok, whatever the revision, on the files that it names.

    `fresh` measures every point again.
    """
    found: dict[str, list[StoredRecord]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and not fresh:
            found[record.point_id].append(record)
    inputs = Inputs()
    work = Todo([], [], [], [])
    for planned in points:
        if planned.point is None or planned.reasons:
            work.invalid.append(planned)
            continue
        others = [inputs.other(record, planned.point) for record in found[planned.point.id]]
        lacking = planned.point.measure.launches - others.count(None)
        if lacking <= 0:
            work.present.append(planned.point)
            continue
        work.missing.append((planned.point, lacking))
        work.elsewhere.extend([(planned.point, why) for why in others if why][:1])
    return work


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


def record_invalid(planned: Planned, experiment: str, scale: str, source: Source, folder: Path) -> None:
    """Keep why a point cannot run, once for each reason."""
    reason = "; ".join(planned.reasons)
    store = Store(folder)
    known, _ = store.read(experiment, scale, source)
    if any(r.point_id == planned.point_id and r.status == "invalid" and r.reason == reason for r in known):
        return
    record = Record.model_validate(
        {
            "experiment": experiment,
            "scale": scale,
            "point_id": planned.point_id,
            "source": source,
            "point": planned.configuration,
            "status": "invalid",
            "reason": reason,
            "environment": host_environment(),
            "started": now(),
            "finished": now(),
        }
    )
    store.write(record, revision())
