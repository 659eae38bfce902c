"""The sweep that a command line names: an experiment, its points, where its records are, and how it is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from suite.ending import refuse
from suite.experiment.catalogue import default_scale, load_experiment
from suite.experiment.expansion import Expansion, Planned, expand
from suite.experiment.spec import Experiment
from suite.launch.backend import Backend

if TYPE_CHECKING:  # a plan needs no records
    from suite.launch.slurm.settle import Jobs
    from suite.records.store import Problem, StoredRecord

RUNS = Path("results/runs")


@dataclass(frozen=True)
class Chosen:
    """A sweep by what the command line says: an experiment at a scale, its points, and the folders of its records."""

    name: str
    overrides: Sequence[str]
    on: Backend
    scale: str | None
    cluster: str | None
    folders: Sequence[Path]

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment. Raises BadInput."""
        return load_experiment(self.name)

    @cached_property
    def at(self) -> str:
        """The scale: the one that was asked for, or the default for where the points run."""
        if self.scale is not None:
            return self.scale
        paper = self.on is Backend.SIMULATE and "paper" in self.experiment.scales
        return "paper" if paper else default_scale(self.experiment)

    @cached_property
    def expansion(self) -> Expansion:
        """The points. Raises BadInput."""
        given = [*self.overrides, *([f"cluster={self.cluster}"] if self.cluster else [])]
        return expand(self.experiment, self.at, given, self.on.source)

    @property
    def source_folders(self) -> list[Path]:
        """Where the points' folders are."""
        return [folder / self.experiment.name / self.at / self.on.source for folder in self.folders]

    def records(self) -> "tuple[list[StoredRecord], list[Problem]]":
        """The records of the sweep's points, and the files that are none."""
        from suite.experiment.recorded import own
        from suite.records.store import read_stores

        stored, problems = read_stores(self.folders, self.experiment.name, self.at, self.on.source)
        records, edited = own(stored)
        return records, sorted([*problems, *edited])

    def settled(self, points: Sequence[Planned]) -> "Jobs":
        """What SLURM says of these points' launches; of those that ended without a record, it is made."""
        from suite.launch.slurm.settle import Jobs
        from suite.launch.status import launches_of

        jobs, launches = Jobs(), launches_of(points, self.source_folders)
        jobs.ask(launches)
        jobs.settle(launches)
        return jobs


@dataclass(frozen=True)
class How:
    """How a sweep is run."""

    fresh: bool = False
    dry_run: bool = False
    as_json: bool = False
    wait: bool = False  # the rest is SLURM's
    together: bool = False
    minutes: int | None = None


def results_folders(results: Sequence[Path] | None) -> list[Path]:
    """The results folders to read, none of which may be a file."""
    folders = list(results or [RUNS])
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            refuse(f"--results {folder}: it is a file; a folder, such as {RUNS}, would work")
    return folders
