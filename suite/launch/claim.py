"""Taking a point's next launch, so that no two sweeps into one folder measure the same thing at once.

No locks, which network file systems lack or only pretend to have: whoever wants a launch makes its folder, which
succeeds for one process only, and looks for others afterwards. Of two that come at the same time at least the later
one sees the other. Whoever sees another withdraws.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.launch.job import Job, JobFolder
from suite.measure.provenance import revision
from suite.records.schema import Source
from suite.records.store import Store, StoredRecord, load

TRIES = 5
_WAIT_SECONDS = (0.05, 0.5)  # between two tries; two that have both withdrawn wait differently long


@dataclass(frozen=True)
class Claims:
    """Where a sweep's records go, and who else may be at work there."""

    experiment: str
    scale: str
    source: Source
    store: Path
    under_way: Callable[[JobFolder], str | None]  # who runs a launch, in words; None where nobody does any more

    def folder(self, point: Point) -> Path:
        """Where the point's records are."""
        return self.store.absolute() / self.experiment / self.scale / self.source / point.id

    def ok_files(self, point: Point) -> set[Path]:
        """The files of the point's records with status ok."""
        root, files = self.store.absolute(), self.folder(point).glob("*.json")
        read = {file: load(file, file.relative_to(root)) for file in files}
        return {file for file, record in read.items() if isinstance(record, StoredRecord) and record.status == "ok"}

    def take(self, point: Point, cluster: Cluster, known: set[Path], own: set[Path] = frozenset()) -> Job | str:  # type: ignore[assignment]
        """The point's next free launch, claimed; or who else measures the point.

        `known` are the records that this sweep has made or has found at its beginning, `own` the folders of the
        launches of this point that it has under way.
        """
        for attempt in range(TRIES):
            if attempt:
                time.sleep(random.uniform(*_WAIT_SECONDS))
            job = self._make(point, cluster)
            folder = JobFolder(job.folder)
            other = self._other(point, own | {job.folder})
            if other is None and not self.ok_files(point) - known:
                return job
            folder.withdraw()
            if other is None:
                return "another sweep has measured it since this one began"
        return f"another sweep is measuring it ({other})"

    def _other(self, point: Point, own: set[Path]) -> str | None:
        for folder in JobFolder.all_of(self.folder(point)):
            if folder.path not in own and (who := self.under_way(folder)):
                return f"{who}, {folder.path}"
        return None

    def _make(self, point: Point, cluster: Cluster) -> Job:
        name = revision()
        job = Job(
            experiment=self.experiment,
            scale=self.scale,
            source=self.source,
            point=point,
            revision=name,
            launch=Store(self.store).next_launch(self.experiment, self.scale, self.source, point.id, name),
            store=self.store.absolute(),
            threads_per_rank=cluster.threads_per_rank,
            device=cluster.device,
        )
        return next_free(job)


def next_free(job: Job) -> Job:
    """The job under the first launch number from its own on that nobody has, claimed."""
    while not JobFolder(job.folder).claim(job.description()):
        job = replace(job, launch=job.launch + 1)
    return job


def local_process(folder: JobFolder) -> str | None:
    """Who runs a launch that is not SLURM's."""
    process = folder.controller()
    return None if process is None else f"process {process}"
