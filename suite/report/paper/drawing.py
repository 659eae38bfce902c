"""A published figure drawn again: published values as hollow markers, simulated ones as lines, measured ones filled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from suite.records.store import SOURCES
from suite.report.paper.comparison import Comparison, Entry
from suite.report.paper.differences import accuracy_lines
from suite.report.paper.plot import Plot, X
from suite.report.style import MUTED, PALETTE, Drawn, legend, new_figure, styled, title

_STYLES: dict[str, dict[str, Any]] = {
    "published": {"marker": "o", "linestyle": "", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.4},
    "simulated": {"marker": "", "linestyle": "-", "linewidth": 1.5},
    "measured": {"marker": "o", "linestyle": ":", "linewidth": 0.9, "markersize": 4.5},
    "emulated": {"marker": "s", "linestyle": "--", "linewidth": 0.8, "markersize": 4},
}
# A line of a single point would not be seen.
_ALONE: dict[str, dict[str, Any]] = {
    "simulated": {"marker": "_", "markersize": 11, "linestyle": "", "markeredgewidth": 1.8}
}
_SMALL = 0.1  # in the larger unit; below, an axis takes the smaller one
_MOST_TICKS = 12


@dataclass(frozen=True)
class Panel:
    """Entries that share both axes: those of one scale, with `given` those whose times of actions were given or not.

    Where the quantity says nothing of a device, `given` is None: how the times came about makes no difference.
    """

    scale: str
    given: bool | None
    entries: tuple[Entry, ...]

    @property
    def sources(self) -> list[str]:
        """The sources whose values stand here; published ones beside timed ones only."""
        return [source for source in reversed(SOURCES) if any(self.has(entry, source) for entry in self.entries)]

    def has(self, entry: Entry, source: str) -> bool:
        """Whether a source's value of an entry is there and belongs to this panel."""
        return source in entry.values and self.given in (None, source in entry.given)


@dataclass(frozen=True)
class Curve:
    """What one source says of one series."""

    series: str
    source: str
    xs: tuple[X, ...]
    ys: tuple[float, ...]

    @property
    def label(self) -> str:
        """Series and source; no two curves of a panel have the same."""
        return f"{self.series}, {self.source}"


def panels_of(comparison: Comparison) -> list[Panel]:
    """A panel for each scale, and for timed and given times apart where the quantity says something of a device."""
    kinds = (False, True) if comparison.plot.quantity.of_device else (None,)
    found = []
    for scale in dict.fromkeys(entry.scale for entry in comparison.entries):
        entries = tuple(entry for entry in comparison.entries if entry.scale == scale)
        found += [Panel(scale, given, entries) for given in kinds]
    return [panel for panel in found if panel.sources]


def curves_of(panel: Panel) -> list[Curve]:
    """The panel's curves: every series of every source that has values."""
    found = []
    for source in panel.sources:
        for series in dict.fromkeys(entry.series for entry in panel.entries):
            pairs = [
                (entry.x, entry.values[source])
                for entry in panel.entries
                if entry.series == series and panel.has(entry, source)
            ]
            if pairs:
                xs, ys = zip(*pairs, strict=True)
                found.append(Curve(series, source, xs, ys))
    return found


def paper_figure(comparison: Comparison, name: str = "paper") -> Drawn | None:
    """The figure with a panel per scale; None where there is no value to draw."""
    panels = panels_of(comparison)
    if not panels:
        return None
    plot = comparison.plot
    with styled():
        rows = -(-len(panels) // 2)
        figure = new_figure(0.7 + 2.9 * rows)
        grid = figure.subplots(rows, min(2, len(panels)), squeeze=False).flatten()
        colours = [_colours(panel) for panel in panels]
        for axes, panel, colour in zip(grid, panels, colours, strict=False):
            _draw(axes, plot, panel, colour, alone=len(panels) == 1)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        legend(figure, _handles(panels, colours), most=4)
        title(figure, f"{plot.name}: {plot.title}" if plot.name else plot.title)
    return Drawn(name, plot.name or plot.title, _alt(comparison, panels), _caption(comparison, panels), figure)


def _colours(panel: Panel) -> dict[str, str]:
    series = dict.fromkeys(entry.series for entry in panel.entries)
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(series)}


def _draw(axes: Axes, plot: Plot, panel: Panel, colours: dict[str, str], alone: bool) -> None:
    curves = curves_of(panel)
    factor, unit = _unit(plot, panel, curves)
    texts = list(dict.fromkeys(entry.x for entry in panel.entries if isinstance(entry.x, str)))
    for curve in curves:
        style = _STYLES[curve.source]
        if len(curve.xs) == 1:
            style = style | _ALONE.get(curve.source, {})
        xs = [float(texts.index(x)) if isinstance(x, str) else x for x in curve.xs]
        ys = [factor * y for y in curve.ys]
        colour = colours[curve.series]
        axes.plot(xs, ys, color=colour, markeredgecolor=colour, label=curve.label, **style)
    if texts:
        axes.set_xticks(range(len(texts)), texts)
        axes.set_xlim(-0.5, len(texts) - 0.5)
    else:
        _number_axis(axes, plot, sorted({x for curve in curves for x in curve.xs if not isinstance(x, str)}))
    axes.set_ylim(0, 1.06 * max((factor * y for curve in curves for y in curve.ys), default=1.0) or 1.0)
    axes.set(xlabel=plot.x_title, ylabel=unit)
    if not alone or panel.given:
        axes.set_title(f"scale {panel.scale}" + (", given times" if panel.given else ""), fontsize=9)
    axes.grid(axis="y")


def _number_axis(axes: Axes, plot: Plot, places: Sequence[float]) -> None:
    if plot.log_x and all(place > 0 for place in places):
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    if len(places) <= _MOST_TICKS:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    if plot.log_x or max((len(f"{x:g}") for x in places), default=0) > 3:
        axes.tick_params(axis="x", labelsize=7.5, rotation=30 if len(places) > 5 else 0)


def _unit(plot: Plot, panel: Panel, curves: Sequence[Curve]) -> tuple[float, str]:
    """By what values are multiplied, and the vertical axis in words."""
    quantity = plot.quantity
    highest = max((y for curve in curves for y in curve.ys), default=1.0)
    if panel.given:
        return 1 / highest, "relative to the highest here"
    if quantity.small_unit and highest < _SMALL:
        return 1000.0, f"{quantity.title}, {quantity.small_unit}"
    return 1.0, f"{quantity.title}, {quantity.unit}" if quantity.unit else quantity.title


def _handles(panels: Sequence[Panel], colours: Sequence[dict[str, str]]) -> list[Artist]:
    """The legend: series by colour, sources by style."""
    series: dict[tuple[str, str], None] = {}
    for panel, colour in zip(panels, colours, strict=True):
        series |= {(curve.series, colour[curve.series]): None for curve in curves_of(panel)}
    handles: list[Artist] = [Line2D([], [], color=colour, linewidth=4, label=name) for name, colour in series]
    shown = {source for panel in panels for source in panel.sources}
    for source, style in _STYLES.items():
        if source in shown:
            handles.append(Line2D([], [], color=MUTED, markeredgecolor=MUTED, label=source, **style))
    return handles


def _alt(comparison: Comparison, panels: Sequence[Panel]) -> str:
    parts = []
    for panel in panels:
        for curve in curves_of(panel):
            ends = f"{curve.ys[0]:.4g} at {curve.xs[0]} to {curve.ys[-1]:.4g} at {curve.xs[-1]}"
            parts.append(f"{panel.scale} {curve.label} {ends}")
    return f"{comparison.plot.title}, {comparison.plot.quantity.title} {comparison.plot.quantity.unit}: " + "; ".join(
        parts
    )


def _caption(comparison: Comparison, panels: Sequence[Panel]) -> str:
    """The formula, the peaks and their sources, and the accuracy."""
    quantity = comparison.plot.quantity
    sentences = [f"{quantity.title.capitalize()}: {quantity.formula}.", *_peaks(comparison)]
    accuracies = accuracy_lines(comparison)
    if accuracies:
        sentences.append("Against the published values: " + "; ".join(accuracies) + ".")
    elif any("published" in panel.sources for panel in panels):
        sentences.append("No record has the configuration of a published value, so there is no accuracy to state.")
    if any(panel.given for panel in panels):
        sentences.append(
            "Given times: the actions' times are the point's pace and say nothing of a device; only proportions count."
        )
    if len(panels) > 1:
        sentences.append("Panels are different configurations or devices and share no axis.")
    return " ".join(sentences)


def _peaks(comparison: Comparison) -> list[str]:
    """A sentence for each peak of a rank that the sources' values can be held against."""
    found: dict[tuple[str, str], set[float]] = {}
    for entry in comparison.entries:
        for source, sample in entry.samples.items():
            if sample.row is None or source not in entry.values or source in entry.given:
                continue
            environment = sample.row.best.record.environment
            if peak := environment.get("peak_flops_per_rank"):
                origin = environment.get("peak_source") or "source not recorded"
                found.setdefault((source, origin), set()).add(peak / 1e12)
    return [
        f"Peak of a rank, {source}: {' to '.join(dict.fromkeys(f'{peak:.4g}' for peak in (min(peaks), max(peaks))))} "
        f"TFLOP/s ({origin})."
        for (source, origin), peaks in found.items()
    ]
