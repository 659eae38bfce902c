"""An experiment's points with the values of every source side by side, and how far they are from the published ones."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.experiment.spec import Experiment
from suite.records.published import PublishedRow
from suite.report.paper.difference import Accuracy, Difference, accuracy, difference
from suite.report.paper.matching import Matched, matched
from suite.report.paper.plot import Plot, X, published_rows
from suite.report.paper.samples import Sample, recorded
from suite.report.summary import PointRow

HERE = ("simulated", "measured", "emulated")  # the sources of records


@dataclass(frozen=True)
class Entry:
    """One point at one scale: its place in the figure, and what each source says of it.

    `values` are in the plot's unit; a source without a value that counts is missing from them. `given` are the sources
    whose times of actions were given.
    """

    scale: str
    series: str
    x: X
    point: Point
    samples: Mapping[str, Sample]
    values: Mapping[str, float]
    reference: bool = False  # the first point of its series, by which a relative quantity divides

    @property
    def given(self) -> set[str]:
        """The sources whose times of actions were given."""
        return {source for source, sample in self.samples.items() if sample.given_times}


@dataclass(frozen=True)
class Comparison:
    """A figure's entries in the order of the experiment, and the published rows that are of none of them."""

    plot: Plot
    entries: tuple[Entry, ...]
    ambiguous: tuple[PublishedRow, ...]
    unmatched: tuple[PublishedRow, ...]

    @property
    def series(self) -> list[tuple[str, str]]:
        """Scale and name of every series."""
        return list(dict.fromkeys((entry.scale, entry.series) for entry in self.entries))

    def difference(self, entry: Entry, source: str) -> Difference | None:
        """Of a source's value to the published one; None where there is not both, or where they are no comparison."""
        sample, value = entry.samples.get("published"), entry.values.get(source)
        printed = sample.printed(self.plot.quantity.name) if sample else None
        comparable = not (self.plot.quantity.of_device and source in entry.given) and not entry.reference
        return difference(value, printed) if printed and value is not None and comparable else None

    def given_values(self, scale: str) -> list[float]:
        """The values at a scale that follow from given times of actions, of which only proportions count."""
        at_scale = [entry for entry in self.entries if entry.scale == scale]
        return [entry.values[source] for entry in at_scale for source in entry.given if source in entry.values]

    def accuracy(self, source: str, series: str | None = None) -> Accuracy | None:
        """Of a source against the published values, over all points or over those of one series."""
        chosen = [entry for entry in self.entries if series in (None, entry.series)]
        return accuracy(found for entry in chosen if (found := self.difference(entry, source)) is not None)


def planned(experiment: Experiment, chosen: Container[str] | None = None) -> dict[str, list[Point]]:
    """The points of the experiment's file by scale, valid or not; a scale that cannot be expanded has none.

    Of them those whose ids are among the `chosen`.
    """
    found: dict[str, list[Point]] = {}
    for scale in experiment.scales:
        try:
            points = [one.point for one in expand(experiment, scale).points]
        except BadInput:  # records can be reported though their file has changed for the worse
            points = []
        found[scale] = [point for point in points if point is not None and (chosen is None or point.id in chosen)]
    return found


def samples_of(
    experiment: Experiment, points: Mapping[str, Sequence[Point]], rows: Sequence[PointRow]
) -> tuple[list[Sample], list[Matched]]:
    """Every sample of the experiment: published ones at the scales whose points they agree with, then recorded ones."""
    here = recorded(rows)
    published = published_rows(experiment)
    found: list[Sample] = []
    matches = []
    for scale, of_file in points.items():
        every = {point.id: point for point in (*of_file, *(sample.point for sample in here if sample.scale == scale))}
        match = matched(published, list(every.values()))
        matches.append(match)
        found += [Sample("published", scale, every[name], None, said) for name, said in match.rows.items()]
    return [*found, *here], matches


def compare(
    experiment: Experiment, plot: Plot, rows: Sequence[PointRow], chosen: Container[str] | None = None
) -> Comparison:
    """Lays the experiment's records over the plot's published rows, at the points `chosen` or at all.

    Points of a scale that has neither a record nor a published row are left out; so are published values of other
    quantities than the plot's.
    """
    points = planned(experiment, chosen)
    samples, matches = samples_of(experiment, points, rows)
    at: dict[tuple[str, str], dict[str, Sample]] = {}
    for sample in samples:
        if sample.source != "published" or sample.printed(plot.quantity.name) is not None:
            at.setdefault((sample.scale, sample.point.id), {})[sample.source] = sample
    entries = []
    for scale, of_file in points.items():
        order = {point.id: number for number, point in enumerate(of_file)}
        every = {point.id: point for point in of_file}
        every |= {name: next(iter(found.values())).point for (of, name), found in at.items() if of == scale}
        if any(of == scale for of, _ in at):
            ids = sorted(every, key=lambda name: order.get(name, len(order)))
            entries += [_entry(plot, scale, every[name], at.get((scale, name), {})) for name in ids]
    taken = {row for match in matches for found in match.rows.values() for row in found}
    ambiguous = {row for match in matches for row in match.ambiguous} - taken
    return Comparison(
        plot,
        tuple(_relative(plot, _in_order(entries))),
        tuple(row for row in plot.rows if row in ambiguous),
        tuple(row for row in plot.rows if row not in ambiguous | taken),
    )


def _entry(plot: Plot, scale: str, point: Point, samples: Mapping[str, Sample]) -> Entry:
    metric = plot.quantity.name
    values = {
        source: value
        for source, sample in samples.items()
        if sample.trouble is None and (value := sample.value(metric)) is not None
    }
    return Entry(scale, plot.series_of(point), plot.x_of(point), point, samples, values)


def _in_order(entries: Sequence[Entry]) -> list[Entry]:
    """By series, as they come, and place on the axis; places that are no numbers stay as they come."""
    series: dict[tuple[str, str], int] = {}
    for entry in entries:
        series.setdefault((entry.scale, entry.series), len(series))
    return sorted(
        entries, key=lambda entry: (series[entry.scale, entry.series], 0.0 if isinstance(entry.x, str) else entry.x)
    )


def _relative(plot: Plot, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Divides what is relative by its series' first point, source by source; published values are so already.

    A source without a value of the first point has none of the others.
    """
    if not plot.quantity.to_first:
        yield from entries
        return
    firsts: dict[tuple[str, str], Mapping[str, float]] = {}
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        place = entry.scale, entry.series
        first = firsts.setdefault(place, {**entry.values, "published": 1.0})
        divided = {source: value / first[source] for source, value in entry.values.items() if source in first}
        yield replace(entry, values=divided, reference=place not in seen)
        seen.add(place)


def sources_of(entries: Iterable[Entry]) -> list[str]:
    """The sources of records that have a sample among the entries."""
    entries = list(entries)
    return [source for source in HERE if any(source in entry.samples for entry in entries)]
