"""A sweep on SLURM: submitting what is missing, and following what was submitted."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.experiment.submission import Slurm
from suite.launch.claim import Claims
from suite.launch.job import Job, JobFolder
from suite.launch.slurm.settle import Jobs
from suite.launch.slurm.shape import nodes_for, shape_of
from suite.launch.slurm.submission import Submission
from suite.launch.slurm.submit import Member, RefusedError, Submitted, check, submit
from suite.launch.sweep import Watcher
from suite.launch.todo import Todo, record_invalid
from suite.records.schema import Record
from suite.records.store import load

LOOK_SECONDS = 1.0  # between two looks at what is on disk
ASK_SECONDS = 5.0  # between two questions to SLURM


@dataclass
class SlurmSweep:
    """Where a sweep's records go, and how its jobs are cut."""

    experiment: str
    scale: str
    store: Path
    cluster: Callable[[str], Cluster]  # the profile by name; each has a section slurm
    minutes: int | None = None  # a limit that was given
    together: bool = False  # all points of a shape in one job, one after another
    jobs: Jobs = field(default_factory=Jobs)

    @property
    def claims(self) -> Claims:
        """How launches are taken."""
        return Claims(self.experiment, self.scale, "measured", self.store, self.jobs.under_way)

    def in_flight(self, points: Sequence[Point]) -> list[JobFolder]:
        """The launches of these points that SLURM has, or had and made no record of; those that ended get theirs."""
        folders = [one for point in points for one in JobFolder.all_of(self.claims.folder(point))]
        given = [one for one in folders if not one.finished and Submission.of(one) is not None]
        self.jobs.ask(given)
        self.jobs.settle(given)
        return [one for one in given if one.path.exists() and not one.finished]

    def members(self, work: Todo, watcher: Watcher) -> list[Member]:
        """Claim the launches that are missing and not in flight, and put them into jobs."""
        for planned in work.invalid:
            record_invalid(planned, self.experiment, self.scale, "measured", self.store)
        flying = defaultdict(set)
        for folder in self.in_flight([point for point, _ in work.missing]):
            flying[folder.path.parents[1].name].add(folder.path)
        taken: list[Job] = []
        for point, count in work.missing:
            known, own = self.claims.ok_files(point), flying[point.id]
            for done in range(len(own), count):
                job = self.claims.take(point, self.cluster(point.cluster), known, own)
                if isinstance(job, str):
                    watcher.skip(point, count - done, job)
                    break
                own = own | {job.folder}
                taken.append(job)
        return [self._member(jobs) for jobs in self._cut(taken)]

    def _cut(self, jobs: list[Job]) -> list[list[Job]]:
        """The launches that share a job."""
        if not self.together:
            return [[job] for job in jobs]
        alike: dict[tuple[str, int, int], list[Job]] = defaultdict(list)
        for job in jobs:
            name, ranks = job.point.cluster, job.point.parallel.ranks
            alike[name, nodes_for(job.point, self._slurm(name)), ranks].append(job)
        return list(alike.values())

    def _slurm(self, cluster: str) -> Slurm:
        found = self.cluster(cluster).slurm
        assert found is not None
        return found

    def _member(self, jobs: list[Job]) -> Member:
        name = jobs[0].point.cluster
        cluster, slurm = self.cluster(name), self._slurm(name)
        shape = shape_of([job.point for job in jobs], cluster, slurm, self.minutes)
        return Member(tuple(jobs), name, slurm, shape)

    def submit(self, members: Sequence[Member]) -> Iterator[Submitted]:
        """Submit the jobs, one array for each shape. Raises RefusedError; whatever was not submitted is given up."""
        shapes = defaultdict(list)
        for member in members:
            shapes[member.cluster, member.shape].append(member)
        left = list(members)
        try:
            for alike in shapes.values():
                check(alike[0])
            for alike in shapes.values():
                for done in submit(alike):
                    left = [member for member in left if member not in done.members]
                    yield done
        except RefusedError:
            for member in left:
                for job in member.jobs:
                    JobFolder(job.folder).withdraw()
            raise

    def follow(self, points: Sequence[Point], watcher: Watcher) -> Iterator[tuple[Job, Record]]:
        """Yield each launch that is in flight with its record, until none is left; launches that follow others too."""
        open_: dict[Path, _Followed] = {}
        asked = 0.0
        while True:
            if time.monotonic() - asked > ASK_SECONDS:
                for folder in self.in_flight(points):
                    open_.setdefault(folder.path, _Followed(folder))
                asked = time.monotonic()
            for path, one in list(open_.items()):
                one.show(watcher)
                if one.folder.finished or not path.exists():
                    del open_[path]
                    if (found := one.record()) is not None:
                        watcher.end(*found)
                        yield found
                        asked = 0.0  # its successor may have been submitted
            if not open_ and asked:
                return
            time.sleep(LOOK_SECONDS)


@dataclass
class _Followed:
    """A launch that is being followed, with what was shown of it."""

    folder: JobFolder
    job: Job | None = None
    seen: int = 0

    def show(self, watcher: Watcher) -> None:
        """Show how far the launch has come."""
        if self.job is None:
            if not (self.folder.path / "attempt.json").exists() or (job := Job.of(self.folder)) is None:
                return
            self.job = job
            watcher.start(job)
        for samples in self.folder.progress(self.seen):
            self.seen += 1
            watcher.iteration(self.job, samples)

    def record(self) -> tuple[Job, Record] | None:
        """The launch with its record; None where that was deleted, or the launch was given up."""
        job = self.job or Job.of(self.folder)
        if job is None or not job.record_file.exists():
            return None
        record = load(job.record_file, job.record_file.relative_to(job.store))
        return None if isinstance(record, str) else (job, record)
