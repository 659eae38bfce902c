"""The figures of throughput, bubble and loss."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from suite.records.store import SOURCES
from suite.report.ideal import GIVEN_TIMES, PACED_SOURCES
from suite.report.labels import beside_bar, clipped
from suite.report.style import (
    INK,
    MUTED,
    PALETTE,
    SOURCE_MARKERS,
    Drawn,
    legend,
    lighter,
    new_figure,
    source_handles,
    styled,
    title,
)
from suite.report.summary import Launch, PointRow
from suite.report.tables import Row, rows

MOST_BARS = 40  # points; above, a figure shows dots
MOST_LOSS_FIGURES = 4
MOST_LEGEND = 12


def throughput(table: pd.DataFrame, colours: Mapping[str, str]) -> Drawn:
    """Throughput of every point that has one, by layout; oversubscribed points hatched."""
    kept = [row for row in rows(table) if row["tokens_per_second"] == row["tokens_per_second"]]
    one_model = len({row["model"] for row in kept}) <= 1
    key, unit = ("tokens_per_second", "tokens/s") if one_model else ("hardware_tflops_per_rank", "TFLOP/s per rank")
    what = "tokens per second" if one_model else "executed TFLOP/s per rank (the models differ)"
    many = len(kept) > MOST_BARS
    with styled():
        if not kept:
            return _nothing("throughput", "Throughput", "No point has a throughput.")
        figure = new_figure(4.2 if many else 1.3 + 0.32 * (len(kept) + 0.6 * _groups(kept)))
        axes = figure.subplots()
        if many:
            _dots(axes, kept, "ranks", key, colours)
            axes.set(xlabel="ranks", ylabel=unit, ylim=(0, None))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter(_ticks(kept, key))
        else:
            _bars(axes, kept, key, colours)
            axes.set_xlabel(unit)
            axes.xaxis.set_major_formatter(_ticks(kept, key))
        legend(figure, _patches(kept, colours, any(row["oversubscribed"] for row in kept)))
        title(figure, f"Throughput by layout (tensor, pipeline, data), {unit}")
    best = max(kept, key=lambda row: row[key])
    paced = {row["source"] for row in kept if row["times_are_given"]}
    return Drawn(
        "throughput",
        "Throughput",
        f"Throughput of {len(kept)} points in {unit}. The highest is {best[key]:.4g} "
        f"for {best['label']}, {best['source']}.",
        f"By layout (tensor, pipeline, data), in {what}. "
        "A series is a schedule and a source. Hatched: oversubscribed, ranks share cores or devices."
        + "".join(f" {source.capitalize()}: {GIVEN_TIMES[source]}." for source in PACED_SOURCES if source in paced),
        figure,
    )


def bubble(table: pd.DataFrame, colours: Mapping[str, str]) -> Drawn:
    """Measured beside ideal bubble of every point that supports both, or why there is none."""
    pipelined = [row for row in rows(table) if row["pipeline"] > 1]
    kept = [
        row
        for row in pipelined
        if row["bubble_measured_percent"] == row["bubble_measured_percent"]
        and row["bubble_measured_percent"] is not None
    ]
    with styled():
        if not kept:
            return _nothing("bubble", "Pipeline bubble", _why_no_bubble(pipelined))
        figure = new_figure(4.2 if len(kept) > MOST_BARS else 1.5 + 0.36 * len(kept))
        axes = figure.subplots()
        if len(kept) > MOST_BARS:
            _dots(axes, kept, "bubble_ideal_percent", "bubble_measured_percent", colours)
            axes.axline((0, 0), slope=1, color=MUTED, linewidth=1, linestyle="--")
            axes.set(xlabel="ideal bubble, % of computation", ylabel="bubble, % of the busiest rank's work")
            legend(figure, _patches(kept, colours, False))
        else:
            _bubble_bars(axes, kept, colours)
        title(figure, "Pipeline bubble by schedule: as run, and ideal")
    left_out = len(pipelined) - len(kept)
    return Drawn(
        "bubble",
        "Pipeline bubble",
        "Bubble over the busiest rank's work: "
        + "; ".join(
            f"{row['label']} {row['source']} {row['bubble_measured_percent']:.3g} % "
            f"(ideal {_percent(row['bubble_ideal_percent'])})"
            for row in kept[:MOST_LEGEND]
        ),
        "(forward-backward time − busiest rank's work) / busiest rank's work, median of the kept iterations; "
        "ideal is (p−1)/(v·m) for gpipe, 1f1b and interleaved, and for other schedules the simulation of their program "
        "without messages. Measured differs from ideal where stages or actions are unequal (the head sits on "
        "the last stage), by message latency, and on a busy machine."
        + (f" {left_out} of {len(pipelined)} pipelined points support no claim." if left_out else ""),
        figure,
    )


def losses(point_rows: Sequence[PointRow], table: pd.DataFrame) -> list[Drawn]:
    """Loss curves of all points that train the same thing, over each other, with their deviation.

    One figure for each set of equal model, batch, seed, precision, data and optimizer, largest sets first.
    """
    sets: dict[tuple[str, ...], list[tuple[str, Launch]]] = defaultdict(list)
    for row, label in zip(point_rows, table.get("label", []), strict=True):
        launch = row.best
        curve = (launch.record.iterations.loss if launch.record.iterations else None) or []
        if launch.record.status == "ok" and any(map(math.isfinite, curve)):
            sets[_task(launch)].append((f"{label}, {launch.record.source}", launch))
    largest = sorted(sets.values(), key=lambda members: -len(members))
    shown = largest[:MOST_LOSS_FIGURES]
    left_out = sum(map(len, largest[MOST_LOSS_FIGURES:]))
    return [
        _loss_figure("loss" if number == 0 else f"loss-{number + 1}", members, left_out)
        for number, members in enumerate(shown)
    ]


def _loss_figure(name: str, members: Sequence[tuple[str, Launch]], left_out: int) -> Drawn:
    curves = [
        (label, curve)
        for label, launch in members
        if launch.record.iterations and (curve := launch.record.iterations.loss)
    ]
    reference = curves[0][1]
    largest = 0.0
    compare = len(curves) > 1
    with styled():
        figure = new_figure(4.6 if compare else 2.8)
        panels = figure.subplots(2 if compare else 1, 1, sharex=True, squeeze=False)[:, 0]
        for number, (label, curve) in enumerate(curves):
            colour = PALETTE[number % len(PALETTE)]
            style = ("-", "--", ":", "-.")[number // len(PALETTE) % 4]
            panels[0].plot(range(1, len(curve) + 1), curve, style, color=colour, label=label, linewidth=1.3)
            if number == 0 or not compare:
                continue
            apart = [abs(a - b) for a, b in zip(curve, reference, strict=False)]
            largest = max([largest, *(value for value in apart if math.isfinite(value))])
            drawn = [value if value > 0 else math.nan for value in apart]
            panels[1].plot(
                range(1, len(drawn) + 1), drawn, style, color=colour, linewidth=1.1, marker=".", markersize=4
            )
        panels[0].set(ylabel="loss")
        title(figure, f"Loss of {len(curves)} layouts and schedules, same training task")
        panels[-1].set_xlabel("iteration")
        if compare:
            panels[1].set(ylabel="|loss − first|", title=clipped(f"Deviation from {curves[0][0]}", 54))
            if largest > 0:
                panels[1].set_yscale("log")
            else:
                panels[1].set_yticks([])
                panels[1].text(
                    0.5,
                    0.5,
                    "every loss is equal to the last bit",
                    transform=panels[1].transAxes,
                    ha="center",
                )
        for panel in panels:
            panel.grid(axis="y")
        if len(curves) <= MOST_LEGEND:
            legend(figure, panels[0].get_lines(), most=2, size=7)
    return Drawn(
        name,
        "Loss",
        f"Loss curves of {len(curves)} points over {len(reference)} iterations; the largest deviation from "
        f"the first is {largest:.3g}.",
        f"The largest deviation from {curves[0][0]} is {largest:.3g}; iterations with exactly the same loss "
        "have no mark in the lower panel."
        + (f" {left_out} points with other training tasks are not drawn." if left_out else ""),
        figure,
    )


def _task(launch: Launch) -> tuple[str, ...]:
    point = launch.point
    return (
        launch.record.scale,
        point.model.model_dump_json(exclude={"name"}),
        point.training.model_dump_json(exclude={"microbatch", "recompute"}),
        point.data.model_dump_json(),
    )


def _nothing(name: str, heading: str, why: str) -> Drawn:
    """A figure that claims nothing and says why."""
    figure = new_figure(1.2)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", color=MUTED, wrap=True)
    return Drawn(name, heading, why, "", figure)


def _why_no_bubble(pipelined: Sequence[Row]) -> str:
    if not pipelined:
        return "No point has more than one pipeline rank, so there is no bubble."
    if all(row["oversubscribed"] for row in pipelined if row["status"] == "ok"):
        return "No bubble is claimed: every pipelined point is oversubscribed,\nits ranks wait for each other."
    return "No bubble is claimed: no pipelined point has samples of every pipeline rank."


def series_colours(table: pd.DataFrame, schedules: Sequence[str]) -> dict[str, str]:
    """A colour for each schedule and source; two sources never share a series.

    `schedules` come first, in their order and whether they are in the table or not; then what else is there.
    """
    present = rows(table)
    labels = [*schedules, *sorted({row["schedule_label"] for row in present} - set(schedules))]
    sources = [source for source in SOURCES if any(row["source"] == source for row in present)]
    names = [_series_name(label, source) for source in sources for label in labels]
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(names)}


def _series_name(schedule_label: str, source: str) -> str:
    return f"{schedule_label}, {source}"


def _series(row: Row) -> str:
    return _series_name(row["schedule_label"], row["source"])


def _ticks(kept: Sequence[Row], key: str) -> str:
    return "{x:,.0f}" if max(row[key] for row in kept) >= 10 else "{x:g}"


def _groups(kept: Sequence[Row]) -> int:
    return len({row["layout"] for row in kept})


def _bars(axes: Axes, kept: Sequence[Row], key: str, colours: Mapping[str, str]) -> None:
    places, place, layout = [], 0.0, None
    ordered = sorted(kept, key=lambda row: (row["ranks"], row["tensor"], row["pipeline"]))
    for row in ordered:
        place += 1.0 if layout in (None, row["layout"]) else 1.6
        layout = row["layout"]
        places.append(place)
    for at, row in zip(places, ordered, strict=True):
        colour = colours[_series(row)]
        crowded = row["oversubscribed"]
        axes.barh(
            at,
            row[key],
            height=0.78,
            color=lighter(colour, 0.6) if crowded else colour,
            edgecolor=colour,
            hatch="////" if crowded else None,
            linewidth=0.8,
        )
        value = f"{row[key]:,.4g}" if row[key] < 1000 else f"{row[key]:,.0f}"
        axes.annotate(
            value if row["source"] == "measured" else f"{value} {row['source']}",
            (row[key], at),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=INK,
        )
    axes.set_yticks(places, _tick_labels(ordered), fontsize=7.5)
    axes.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    axes.margins(x=0.14)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _bubble_bars(axes: Axes, kept: Sequence[Row], colours: Mapping[str, str]) -> None:
    for at, row in enumerate(kept):
        measured, ideal = row["bubble_measured_percent"], row["bubble_ideal_percent"]
        axes.barh(at - 0.19, measured, height=0.36, color=colours[_series(row)])
        if ideal == ideal and ideal is not None:
            axes.barh(at + 0.19, ideal, height=0.36, color="#d5dade")
        texts = [
            (measured, -0.19, f"{_percent(measured)} {row['source']}"),
            (ideal, 0.19, f"{_percent(ideal)} ideal"),
        ]
        for value, offset, text in texts:
            if value == value and value is not None:
                axes.annotate(
                    text,
                    (max(value, 0), at + offset),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
    axes.set_yticks(range(len(kept)), _tick_labels(kept), fontsize=7.5)
    axes.set_ylim(len(kept) - 0.5, -0.5)
    axes.set_xlabel("bubble, % of the busiest rank's work")
    axes.margins(x=0.2)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _dots(axes: Axes, kept: Sequence[Row], x: str, y: str, colours: Mapping[str, str]) -> None:
    for row in kept:
        colour = colours[_series(row)]
        face = "white" if row["oversubscribed"] else colour
        axes.plot(row[x], row[y], SOURCE_MARKERS[row["source"]], color=colour, markerfacecolor=face, markersize=4.5)
    axes.grid()


def _tick_labels(kept: Sequence[Row]) -> list[str]:
    return [beside_bar(row["label"], f"{row['layout']} {row['schedule_label']}") for row in kept]


def _patches(kept: Sequence[Row], colours: Mapping[str, str], crowded: bool) -> list[Artist]:
    """The legend: series by colour, as many as fit, and the sources by marker where points are dots."""
    shown = {_series(row) for row in kept}
    drawn = [(name, colour) for name, colour in colours.items() if name in shown]
    handles: list[Artist] = [Patch(color=colour, label=name) for name, colour in drawn[:MOST_LEGEND]]
    if len(drawn) > MOST_LEGEND:
        handles.append(Patch(color="none", label=f"and {len(drawn) - MOST_LEGEND} more series"))
    if len(kept) > MOST_BARS:
        handles += source_handles({row["source"] for row in kept}, MUTED)
    if crowded:
        handles.append(Patch(facecolor="white", edgecolor=MUTED, hatch="////", label="oversubscribed"))
    return handles


def _percent(value: float | None) -> str:
    return f"{value:.3g} %" if value is not None and value == value else "–"
