"""What an experiment's `paper:` says of the published figure: its axes, its series, and which rows lie over it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from suite.experiment.errors import BadInput, Place, Problem, did_you_mean
from suite.experiment.fields import FIELDS, SHORT
from suite.experiment.point import Point
from suite.experiment.spec import Experiment
from suite.records.published import PublishedRow, published, published_files
from suite.report.paper.quantities import QUANTITIES, Quantity

_COMPUTED = ("ranks", "microbatches", "virtual_stages")
_AXES = {
    "training.global_batch": "global batch B, sequences",
    "training.microbatch": "microbatch b, sequences",
    "parallel.pipeline": "pipeline-parallel size p",
    "parallel.tensor": "tensor-parallel size t",
    "parallel.data": "data-parallel size d",
    "ranks": "ranks (GPUs)",
    "model.layers": "layers",
    "model.name": "model",
    "kernels": "element-wise operators",
}
_SYMBOLS = {
    "training.global_batch": "B",
    "training.microbatch": "b",
    "parallel.pipeline": "p",
    "parallel.tensor": "t",
    "parallel.data": "d",
    "ranks": "n",
    "microbatches": "m",
}
_SAID: dict[str, dict[Any, str]] = {
    "parallel.scatter_gather": {True: "scatter/gather", False: "no scatter/gather"},
    "training.recompute": {"none": "no recomputation", "full": "full recomputation", "selective": "selective"},
    "parallel.sharding": {"none": "no sharding", "zero1": "ZeRO-1", "zero3": "ZeRO-3"},
    "parallel.sequence": {True: "sequence parallel", False: "no sequence parallelism"},
    "kernels": {"auto": "fused", "torch": "fused", "reference": "not fused"},
}

X = float | str


@dataclass(frozen=True)
class Plot:
    """The figure as the paper draws it. `x` and `series` are dotted fields of a point."""

    name: str  # "Figure 12"
    title: str
    x: str
    series: tuple[str, ...]
    quantity: Quantity
    log_x: bool
    rows: tuple[PublishedRow, ...]  # of the figure and its quantity
    gaps: tuple[str, ...]

    @property
    def x_title(self) -> str:
        """The horizontal axis in words."""
        return _AXES.get(self.x, self.x)

    def x_of(self, point: Point) -> X:
        """The point's place on the horizontal axis; a text where the field is none of a number."""
        value = value_at(point, self.x)
        return said(self.x, point) if isinstance(value, bool) or not isinstance(value, int | float) else value

    def x_said(self, x: X) -> str:
        """A place on the horizontal axis as text, `B=12`."""
        text = x if isinstance(x, str) else f"{x:g}"
        return f"{_SYMBOLS[self.x]}={text}" if self.x in _SYMBOLS else text

    def series_of(self, point: Point) -> str:
        """The name of the point's series; the only one of a figure without fields to tell series apart by is `all`."""
        return " ".join(said(path, point) for path in self.series) or "all points"

    def label_of(self, point: Point) -> str:
        """The point by its series, or else its model, and its place."""
        return f"{self.row_of(point)}, {self.x_said(self.x_of(point))}"

    def row_of(self, point: Point) -> str:
        """What tells the point from others at its place: its series, or where there is only one, its model."""
        return self.series_of(point) if self.series else said("model.name", point)


def value_at(point: Point, path: str) -> Any:
    """The value of a dotted field, or of what follows from fields."""
    if path == "ranks":
        return point.parallel.ranks
    value: Any = point
    for part in path.split("."):
        value = getattr(value, part)
    return value


def said(path: str, point: Point) -> str:
    """A field of the point as a legend says it."""
    if path == "schedule.name":
        return point.schedule_label
    value = value_at(point, path)
    if path in _SAID and not isinstance(value, dict):
        return _SAID[path].get(value, str(value))
    if path in _SYMBOLS:
        return f"{_SYMBOLS[path]}={value}"
    if path == "kernels":
        return "; ".join(f"{_SAID[path].get(name, name)}: {operator}" for operator, name in value.items())
    if path == "model.name":
        return point.model.name or f"l={point.model.layers} h={point.model.hidden_size}"
    return f"{path.rpartition('.')[2]}={value}"


def heading(paper: Mapping[str, Any]) -> str:
    """The published result's name, `Figure 12`; empty where the file does not say."""
    return next((f"{kind.capitalize()} {paper[kind]}" for kind in ("figure", "table", "section") if kind in paper), "")


def plot_of(experiment: Experiment) -> Plot | None:
    """The figure that the experiment reproduces; None where its file has no `paper.plot`.

    Raises:
        BadInput: a key of `paper.plot` or `paper.published` is missing or names nothing.
    """
    given = experiment.paper.get("plot")
    if given is None:
        return None
    reading = _Reading(experiment)
    if not isinstance(given, dict):
        reading.fail("paper.plot", f"got {given!r}; it must be a mapping; {{x: global_batch, y: hfu}} would work")
    x = reading.field("paper.plot.x", given.get("x"))
    series = given.get("series") or []
    if not isinstance(series, list):
        reading.fail("paper.plot.series", f"got {series!r}; it must be a list of fields; [schedule.name] would work")
    quantity = QUANTITIES.get(str(given.get("y")))
    if quantity is None:
        reading.fail("paper.plot.y", f"got {given.get('y')!r}; {did_you_mean(str(given.get('y')), QUANTITIES)}")
    return Plot(
        heading(experiment.paper),
        str(given.get("title") or experiment.title),
        x,
        tuple(reading.field("paper.plot.series", path) for path in series),
        quantity,
        bool(given.get("log_x")),
        tuple(row for row in published_rows(experiment) if row.metric == quantity.name),
        tuple(map(str, experiment.paper.get("gaps") or [])),
    )


def published_rows(experiment: Experiment) -> list[PublishedRow]:
    """The rows that `paper.published` names; none where the file has no such key. Raises BadInput."""
    given = experiment.paper.get("published")
    if given is None:
        return []
    reading = _Reading(experiment)
    source = given.get("source") if isinstance(given, dict) else None
    if not isinstance(source, str) or source not in published_files():
        known = did_you_mean(str(source), published_files())
        reading.fail("paper.published.source", f"got {source!r}; it must name a file of results/published; {known}")
    rows = published(source)
    found = [row for row in rows if row.table == given.get("table")]
    if not found:
        tables = {row.table: None for row in rows if row.table}
        known = did_you_mean(str(given.get("table")), tables)
        reading.fail("paper.published.table", f"got {given.get('table')!r}; {source} has no such table; {known}")
    return found


@dataclass(frozen=True)
class _Reading:
    experiment: Experiment

    def field(self, key: str, word: Any) -> str:
        short = {**SHORT, "schedule": "schedule.name", "model": "model.name"}
        known = (*FIELDS, *_COMPUTED, *short)
        if word not in known:
            self.fail(key, f"got {word!r}; it must be a field of a point; {did_you_mean(str(word), known)}")
        return short.get(word, word)

    def fail(self, key: str, message: str) -> NoReturn:
        raise BadInput([Problem(message, Place(str(self.experiment.path)), key)])
