"""The figure of what schedules trade: bubble against activations in flight."""

from collections import defaultdict
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.pipeline.generators import GENERATORS
from suite.records.store import SOURCES
from suite.report.beside import Box, Spot, places
from suite.report.numbers import absent
from suite.report.style import (
    INK,
    MUTED,
    SOURCE_COLOURS,
    SOURCE_MARKERS,
    Drawn,
    legend,
    new_figure,
    source_handles,
    styled,
    title,
)
from suite.report.summary import VARYING_PREFIX
from suite.report.tables import Row, rows

_FEWEST = 3  # schedules; fewer trade nothing
_MOST_PANELS = 6
_PANEL = 3.0  # inches
_TEXT = 6.5  # points
_MARKER = 5.0
_WIDE = 4.0  # largest over smallest number of activations; a wider panel is logarithmic
_FAR = 6.0  # from the point's middle; a label further away is led to it by a line

Panel = tuple[int, int]  # pipeline size, microbatches


def tradeoff(table: pd.DataFrame) -> list[Drawn]:
    """Bubble as run against proved activations in flight, a panel for each pipeline size and number of microbatches.

    Empty where no panel has three schedules. Oversubscribed points make no claim and are left out.
    """
    pipelined = [row for row in rows(table) if row["pipeline"] > 1 and row["status"] == "ok"]
    panels: dict[Panel, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in pipelined:
        if not absent(row["bubble_measured_percent"]) and not absent(row["peak_activations"]):
            panels[row["pipeline"], row["microbatches"]][_name(row)].append(row)
    told = {size: found for size, found in panels.items() if len(found) >= _FEWEST}
    if not told:
        return []
    shown = sorted(sorted(told, key=lambda size: (-len(told[size]), size))[:_MOST_PANELS])
    drawn = [row for size in shown for found in told[size].values() for row in found]
    with styled():
        figure = _figure([(size, told[size]) for size in shown], drawn)
    best = min(drawn, key=lambda row: row["bubble_measured_percent"])
    least = min(drawn, key=lambda row: row["peak_activations"])
    return [
        Drawn(
            "bubble-memory",
            "Bubble against memory",
            f"Bubble of {len(drawn)} points against the activations that a rank holds. The smallest bubble is "
            f"{_said(best)}; the fewest activations are those of {_said(least)}.",
            "Across: the highest proved number of microbatches whose activations a rank holds, in shares of a rank. "
            "Up: the bubble as run, in percent of the busiest rank's work. Nearer to the lower left corner is better; "
            "a line joins one schedule's points." + _twice(drawn) + _left_out(pipelined, drawn),
            figure,
        )
    ]


def _name(row: Row) -> str:
    """The schedule with what else makes it another one, where the points differ in it."""
    options = ((heading, row.get(VARYING_PREFIX + heading, "-")) for heading in ("group", "cap", "base"))
    return " ".join([row["schedule_label"], *(f"{heading}={value}" for heading, value in options if value != "-")])


def _twice(drawn: Sequence[Row]) -> str:
    """That activations are not all memory, where some schedules have more than one copy of the weights."""
    names = sorted({row["schedule"] for row in drawn if GENERATORS[row["schedule"]].replicas > 1})
    if not names:
        return ""
    return (
        f" {' and '.join(names)} {'hold' if len(names) > 1 else 'holds'} the weights twice, which is not counted here."
    )


def _said(row: Row) -> str:
    bubble = round(row["bubble_measured_percent"], 9)  # what is left of equal sums is no bubble
    where = f"{_name(row)}, p={row['pipeline']}, m={row['microbatches']}, {row['source']}"
    return f"{bubble:.3g} % at {row['peak_activations']:.3g} microbatches ({where})"


def _left_out(pipelined: Sequence[Row], drawn: Sequence[Row]) -> str:
    crowded = sum(bool(row["oversubscribed"]) for row in pipelined)
    others = len(pipelined) - len(drawn) - crowded
    texts = [f" {crowded} oversubscribed points make no claim and are left out."] if crowded else []
    if others:
        texts.append(
            f" {others} other points are left out: without a bubble or activations, of a panel with fewer than "
            f"{_FEWEST} schedules, or of more than {_MOST_PANELS} panels."
        )
    return "".join(texts)


def _figure(panels: Sequence[tuple[Panel, dict[str, list[Row]]]], drawn: Sequence[Row]) -> Figure:
    figure = new_figure(0.9 + _PANEL * len(panels))
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, ((stages, microbatches), schedules) in zip(all_axes, panels, strict=True):
        for found in schedules.values():
            across = [row["peak_activations"] for row in found]
            up = [row["bubble_measured_percent"] for row in found]
            axes.plot(across, up, color=MUTED, linewidth=0.7, alpha=0.6, zorder=1)
        for source in SOURCES:
            of_source = [row for found in schedules.values() for row in found if row["source"] == source]
            axes.plot(
                [row["peak_activations"] for row in of_source],
                [row["bubble_measured_percent"] for row in of_source],
                SOURCE_MARKERS[source],
                color=SOURCE_COLOURS[source],
                markersize=_MARKER,
                markeredgecolor="white",
                markeredgewidth=0.5,
                zorder=2,
            )
        axes.set_title(f"p={stages}, m={microbatches}", fontsize=8.5)
        axes.set_ylabel("bubble, %")
        axes.margins(x=0.12, y=0.16)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        held = [row["peak_activations"] for found in schedules.values() for row in found]
        if max(held) > _WIDE * min(held):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.set_xlim(left=0)
        axes.grid()
    all_axes[-1].set_xlabel("activations in flight, microbatches of a rank's share")
    legend(figure, source_handles({row["source"] for row in drawn}))
    title(figure, "Bubble against activations in flight, by schedule")
    figure.draw_without_rendering()  # only now is it known where the points are
    for axes, (_, schedules) in zip(all_axes, panels, strict=True):
        _labels(axes, schedules)
    return figure


def _labels(axes: Axes, schedules: dict[str, list[Row]]) -> None:
    """Each schedule's name once, beside one of its points; a thin line leads to one further away.

    Schedules whose points are the same share a label.
    """
    points_per_pixel = 72 / axes.figure.dpi

    def spot(row: Row) -> Spot:
        x, y = axes.transData.transform((row["peak_activations"], row["bubble_measured_percent"]))
        return x * points_per_pixel, y * points_per_pixel

    def data(place: Spot) -> Spot:
        x, y = axes.transData.inverted().transform((place[0] / points_per_pixel, place[1] / points_per_pixel))
        return x, y

    window = axes.get_window_extent()
    frame = Box(*(side * points_per_pixel for side in (window.x0, window.y0, window.x1, window.y1)))
    together: dict[tuple[Spot, ...], list[str]] = defaultdict(list)  # schedules whose points are the same
    for name, found in schedules.items():
        together[tuple(sorted({(round(x), round(y)) for x, y in map(spot, found)}, reverse=True))].append(name)
    texts = ["\n".join(names) for names in together.values()]
    sizes = [(0.6 * _TEXT * max(map(len, names)), 1.2 * _TEXT * len(names)) for names in together.values()]
    limits = axes.get_xlim(), axes.get_ylim()
    for text, place in zip(texts, places(list(together), sizes, frame, _MARKER), strict=True):
        box = place.box
        middle = data(((box.left + box.right) / 2, (box.bottom + box.top) / 2))
        axes.text(*middle, text, ha="center", va="center", fontsize=_TEXT, color=INK, linespacing=1.1).set_in_layout(
            False
        )
        if place.distance > _FAR:
            (x, y), (to_x, to_y) = data(place.point), data(place.nearest)
            axes.plot((x, to_x), (y, to_y), color=INK, linewidth=0.4, zorder=1)
    axes.set(xlim=limits[0], ylim=limits[1])
