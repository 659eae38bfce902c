"""One published figure in a report: the figure drawn again, its difference table, and where the time goes."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from suite.experiment.spec import Experiment
from suite.report.breakdown import Bar, breakdown_figure, breakdown_table, parts_of
from suite.report.grid import Grid
from suite.report.paper.comparison import HERE, Comparison, compare
from suite.report.paper.differences import difference_table, loose_rows
from suite.report.paper.drawing import paper_figure
from suite.report.paper.plot import plot_of
from suite.report.style import Drawn
from suite.report.summary import PointRow


@dataclass(frozen=True)
class Section:
    """A figure with the table under it, and what is to be known about both."""

    figure: Drawn
    table: Grid
    notes: tuple[str, ...] = ()
    notes_title: str = ""


def paper_sections(
    experiment: Experiment,
    rows: Sequence[PointRow],
    chosen: Container[str] | None = None,
    prefix: str = "",
) -> tuple[Comparison | None, list[Section]]:
    """The sections of an experiment with `paper.plot`; none of one without, or where there is nothing to draw.

    `prefix` begins the figures' file names. Raises BadInput where the file's `paper.plot` cannot be read.
    """
    plot = plot_of(experiment)
    if plot is None:
        return None, []
    comparison = compare(experiment, plot, rows, chosen)
    sections = []
    figure = paper_figure(comparison, f"{prefix}paper")
    if figure is not None:
        notes = (*plot.gaps, *loose_rows(comparison))
        sections.append(
            Section(figure, difference_table(comparison), notes, "What the paper does not say, and what is assumed")
        )
    return comparison, [*sections, *_breakdowns(comparison, prefix)]


def _breakdowns(comparison: Comparison, prefix: str) -> list[Section]:
    """Where the time goes, of the comparison's records."""
    return breakdown_sections(
        (
            (comparison.plot.label_of(entry.point), entry.samples[source].row)
            for scale in dict.fromkeys(entry.scale for entry in comparison.entries)
            for source in HERE
            for entry in comparison.entries
            if entry.scale == scale and source in entry.samples
        ),
        prefix,
    )


def breakdown_sections(labelled: Iterable[tuple[str, PointRow | None]], prefix: str = "") -> list[Section]:
    """A section for each scale and source whose records say what their time was spent on, a bar per labelled point."""
    bars: dict[tuple[str, str], list[Bar]] = {}
    for label, row in labelled:
        if row is None or row.best.metrics.iteration_seconds is None:
            continue
        record = row.best.record
        if parts := parts_of(record):
            place = bars.setdefault((record.scale, record.source), [])
            place.append(Bar(label, row.best.metrics.iteration_seconds, parts))
    sections = []
    for (scale, source), of_place in bars.items():
        figure = breakdown_figure(of_place, f"{source}, {scale}", f"{prefix}breakdown-{scale}-{source}")
        if figure is not None:
            sections.append(Section(figure, breakdown_table(of_place)))
    return sections
