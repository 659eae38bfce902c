"""One published figure in a report: the figure drawn again, its difference table, and where the time goes."""

from collections.abc import Container, Sequence
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
    """A section for each scale and source whose records say what their time was spent on."""
    sections = []
    for scale in dict.fromkeys(entry.scale for entry in comparison.entries):
        for source in HERE:
            bars = [
                Bar(comparison.plot.label_of(entry.point), sample.timed.seconds, parts)
                for entry in comparison.entries
                if entry.scale == scale
                and (sample := entry.samples.get(source)) is not None
                and sample.row is not None
                and sample.timed is not None
                and (parts := parts_of(sample.row.best.record))
            ]
            figure = breakdown_figure(bars, f"{source}, {scale}", f"{prefix}breakdown-{scale}-{source}")
            if figure is not None:
                sections.append(Section(figure, breakdown_table(bars)))
    return sections
