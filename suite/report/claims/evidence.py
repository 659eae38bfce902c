"""What claims are checked by: the experiments' records by source, and the published rows of their points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.experiment.spec import Experiment
from suite.records.published import PublishedRow, published
from suite.records.schema import Source
from suite.records.store import Problem, read_stores
from suite.report.metrics import achieved
from suite.report.paper.comparison import planned, samples_of
from suite.report.paper.samples import Sample
from suite.report.summary import PointRow, launches_of, rows_of

PAPER = "narayanan2021"
PAPER_SCALE, LAPTOP = "paper", "laptop"
_ON = {"simulated": " --on simulate", "emulated": " --on emulate", "measured": ""}

Curves = dict[Any, dict[Any, float]]


class MissingError(Exception):
    """A check lacks records or published rows; the text says which, and what would make them."""


@dataclass(frozen=True)
class Evidence:
    """The experiments of a paper by name, with the stores that their records are read from."""

    experiments: Mapping[str, Experiment]
    folders: Sequence[Path]
    _rows: dict[str, tuple[list[PointRow], list[Problem]]] = field(default_factory=dict)
    _samples: dict[str, list[Sample]] = field(default_factory=dict)

    def read(self, name: str) -> tuple[list[PointRow], list[Problem]]:
        """The experiment's records as points, and the files that are none."""
        if name not in self._rows:
            records, problems = read_stores(self.folders, self._experiment(name).name)
            launches, unreadable = launches_of(records, achieved)
            self._rows[name] = rows_of(launches), sorted([*problems, *unreadable])
        return self._rows[name]

    def samples(self, name: str) -> list[Sample]:
        """Every sample of the experiment. Raises MissingError where there is no such experiment."""
        if name not in self._samples:
            experiment = self._experiment(name)
            self._samples[name] = samples_of(experiment, planned(experiment), self.read(name)[0])[0]
        return self._samples[name]

    def points(self, name: str, scale: str) -> list[Point]:
        """The valid points of the experiment's file at a scale; none where it has no such scale."""
        experiment = self._experiment(name)
        source: Source = "simulated" if scale == PAPER_SCALE else "measured"
        try:
            return [one.point for one in expand(experiment, scale, source=source).valid if one.point is not None]
        except BadInput:
            return []

    @cached_property
    def rows(self) -> list[PublishedRow]:
        """Every published row of the paper."""
        return published(PAPER)

    def of_table(self, table: str, metric: str) -> list[PublishedRow]:
        """The paper's rows of a table or figure with that metric. Raises MissingError where there is none."""
        found = [row for row in self.rows if row.table == table and row.metric == metric]
        if not found:
            raise MissingError(f"{table} has no published {metric}")
        return found

    def lens(self, source: str, scale: str) -> "Lens":
        """The evidence as one source has it at one scale."""
        return Lens(self, source, scale)

    def _experiment(self, name: str) -> Experiment:
        if name not in self.experiments:
            raise MissingError(f"there is no experiment {name}")
        return self.experiments[name]


@dataclass(frozen=True)
class Lens:
    """What one source says at one scale; never two sources together."""

    evidence: Evidence
    source: str
    scale: str

    @property
    def published(self) -> "Lens":
        """The published values of the same points, by which a source's numbers are judged."""
        return self.evidence.lens("published", PAPER_SCALE)

    @property
    def is_published(self) -> bool:
        """Whether this is what the paper printed."""
        return self.source == "published"

    def samples(self, name: str, whole: bool = True) -> list[Sample]:
        """The source's samples; with `whole` raises MissingError where a point of the sweep has none."""
        found = [
            sample
            for sample in self.evidence.samples(name)
            if sample.source == self.source and sample.scale == self.scale
        ]
        if self.is_published:
            return found
        present = {sample.point.id for sample in found}
        missing = sum(point.id not in present for point in self.evidence.points(name, self.scale)) if whole else 0
        if not found or missing:
            scale = "" if (self.source, self.scale) == ("simulated", PAPER_SCALE) else f" --scale {self.scale}"
            what = f"{missing} points of {name} have no {self.source} record" if found else f"no {self.source} record"
            raise MissingError(f"{what}; suite run {name}{_ON.get(self.source, '')}{scale}")
        return found

    def values(self, name: str, metric: str = "tflops_per_gpu") -> list[tuple[Point, float]]:
        """Points with their values, those that could not run left out. Raises MissingError where there is none."""
        samples = self.samples(name)
        found = [
            (sample.point, value)
            for sample in samples
            if sample.trouble is None and (value := sample.value(metric)) is not None
        ]
        if not found:
            raise MissingError(f"{name} has no {self.source} {metric}")
        return found

    def curves(
        self, name: str, series: Callable[[Point], Any], x: Callable[[Point], Any], metric: str = "tflops_per_gpu"
    ) -> Curves:
        """Values by series and place, both in ascending order."""
        found: Curves = {}
        for point, value in self.values(name, metric):
            found.setdefault(series(point), {})[x(point)] = value
        return {key: dict(sorted(curve.items())) for key, curve in sorted(found.items())}


def batch(point: Point) -> int:
    """Sequences in the global batch, B."""
    return point.training.global_batch


def microbatch(point: Point) -> int:
    """Sequences in a microbatch, b."""
    return point.training.microbatch


def tensor(point: Point) -> int:
    """Tensor-parallel size, t."""
    return point.parallel.tensor


def pipeline(point: Point) -> int:
    """Pipeline-parallel size, p."""
    return point.parallel.pipeline


def ranks(point: Point) -> int:
    """Ranks, n = t p d."""
    return point.parallel.ranks


def listed(values: Iterable[float], form: str = ".3g") -> str:
    """Numbers in a row."""
    return ", ".join(f"{value:{form}}" for value in values)
