"""How near the simulator comes: predicted over measured iteration time of every point that has both."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from suite.experiment.point import Point
from suite.report.labels import clipped
from suite.report.numbers import significant
from suite.report.style import INK, MUTED, SOURCE_COLOURS, Drawn, legend, lighter, new_figure, styled, title
from suite.report.summary import Launch, PointRow, configured, device_of, varying

BAND = 0.15  # either way of what was measured

_LABEL = 44  # characters beside a row


@dataclass(frozen=True)
class Pair:
    """A point's iteration: predicted, measured with its quartiles, in seconds."""

    label: str
    predicted: float
    measured: float
    quartiles: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def pairs(rows: Sequence[PointRow]) -> list[Pair]:
    """The points that were measured on a device and simulated for a device of the same name.

    The clusters may have different names: what a machine is called changes nothing that runs on it.
    """
    simulated = {}
    for launch in (row.best for row in rows if row.best.record.source == "simulated"):
        if launch.record.breakdown_seconds and (seconds := _seconds(launch)):
            simulated[_key(launch)] = seconds
    both = [row for row in rows if row.best.record.source == "measured" and _key(row.best) in simulated]
    return [
        Pair(label, simulated[_key(row.best)], measured, _quartiles(row.best))
        for row, label in zip(both, _labels(both), strict=True)
        if (measured := _seconds(row.best))
    ]


def _labels(rows: Sequence[PointRow]) -> list[str]:
    """Layout, schedule, model, and what is not as in most of the points."""
    parts = [[row.best.point.layout, row.best.point.schedule_label] for row in rows]
    for path, heading in varying(rows).items():
        values = [configured(row.best, path) for row in rows]
        most = max(values, key=values.count)
        for row, part, value in zip(rows, parts, values, strict=True):
            if path == "model":
                part.append(row.best.point.model.name or value)
            elif value != most:
                part.append(f"{heading}={value}")
    return [" ".join(part) for part in parts]


def accuracy(rows: Sequence[PointRow]) -> list[Drawn]:
    """The figure of all pairs, with a band around what was measured; none without pairs."""
    found = pairs(rows)
    if not found:
        return []
    colour = SOURCE_COLOURS["simulated"]
    with styled():
        figure = new_figure(1.3 + 0.2 * len(found))
        axes = figure.subplots()
        axes.axvspan(1 - BAND, 1 + BAND, color=lighter(SOURCE_COLOURS["measured"], 0.85), zorder=0)
        axes.axvline(1, color=SOURCE_COLOURS["measured"], linewidth=1, zorder=1)
        right = max(max(pair.ratio, pair.predicted / pair.quartiles[0]) for pair in found)
        for place, pair in enumerate(found):
            axes.plot([pair.predicted / seconds for seconds in pair.quartiles], [place] * 2, color=MUTED, linewidth=1)
            axes.plot(pair.ratio, place, "^", color=colour, markersize=5)
            axes.annotate(
                f"{pair.ratio:.2f}  ({significant(pair.predicted)} s of {significant(pair.measured)} s)",
                (max(right, 1 + BAND), place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=INK,
                annotation_clip=False,
            )
        axes.set_yticks(range(len(found)), [clipped(pair.label, _LABEL) for pair in found], fontsize=7)
        axes.set(ylim=(len(found) - 0.5, -0.5), xlabel="simulated over measured iteration time")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        handles = [
            Line2D([], [], marker="^", color=colour, linestyle="", markersize=5, label="simulated, over measured"),
            Line2D([], [], color=MUTED, label="over the quartiles of what was measured"),
            Patch(color=lighter(SOURCE_COLOURS["measured"], 0.85), label=f"measured ± {BAND:.0%}"),
        ]
        legend(figure, handles, size=7.5)
        title(figure, "Simulated against measured iteration time")
    return [Drawn("accuracy", "Accuracy of the simulation", _said(found), _caption(), figure)]


def deviation(found: Sequence[Pair]) -> float:
    """The median distance of the ratios from 1."""
    return median(abs(pair.ratio - 1) for pair in found)


def _said(found: Sequence[Pair]) -> str:
    inside = sum(abs(pair.ratio - 1) <= BAND for pair in found)
    worst = max(found, key=lambda pair: abs(pair.ratio - 1))
    return (
        f"Of {len(found)} points, simulated and measured on a device of the same name, {inside} lie within {BAND:.0%}; "
        f"the median deviation is {deviation(found):.1%}, the largest {worst.ratio - 1:+.0%} ({worst.label})."
    )


def _caption() -> str:
    return (
        "Right of 1 the simulation is slower than the machine was, left of it faster. Simulated times are of a cluster "
        "profile's hardware; measured ones are medians of the kept iterations."
    )


def _key(launch: Launch) -> tuple[str, str, str | None]:
    """What pairs launches: scale, configuration but for the cluster's name, device."""
    anywhere: Point = launch.point.model_copy(update={"cluster": Point.model_fields["cluster"].default})
    return launch.record.scale, anywhere.id, device_of(launch.record)


def _seconds(launch: Launch) -> float | None:
    return launch.metrics.iteration_seconds if launch.record.status == "ok" else None


def _quartiles(launch: Launch) -> tuple[float, float]:
    iterations = launch.record.iterations
    kept = iterations.seconds[iterations.warmup :] if iterations else []
    if len(kept) < 2:
        return (launch.metrics.iteration_seconds or 0.0,) * 2
    low, _, high = quantiles(kept, n=4, method="inclusive")
    return low, high
