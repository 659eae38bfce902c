"""The report's figure of how points went over revisions: a row for each, with the steps that were found."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from suite.records.store import StoredRecord
from suite.regression.history import Series, histories
from suite.regression.steps import LEAST_EFFECT
from suite.report.labels import clipped
from suite.report.style import INK, MUTED, SOURCE_COLOURS, Drawn, new_figure, styled

LEAST_RUNS = 3  # revisions of a point that make a history
MOST_ROWS = 12

_TICKS = 12  # revisions that are named below a row


def history(records: Sequence[StoredRecord]) -> list[Drawn]:
    """The figure; none where no point has enough revisions. Points with the largest steps come first."""
    found = [series for series in histories(records)[0] if len(series.runs) >= LEAST_RUNS]
    if not found:
        return []
    shown = sorted(found, key=lambda one: -max((abs(step.change) for step in one.steps), default=0.0))[:MOST_ROWS]
    with styled():
        figure = new_figure(0.5 + 1.5 * len(shown))
        for axes, series in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            _draw(axes, series)
    steps = sum(len(one.steps) for one in found)
    left_out = f"; the other {len(found) - len(shown)} points are left out" if len(found) > len(shown) else ""
    caption = (
        "Time of a token at each revision over that at the first, each the median of its launches; lines are levels. "
        f"{steps} steps of {100 * LEAST_EFFECT:g} % or more were found{left_out}. "
        "`suite history` names the commits at each."
    )
    alt = f"Relative time over revisions of {len(shown)} points, with {steps} steps"
    return [Drawn("history", "History", alt, caption, figure)]


def _draw(axes: Axes, series: Series) -> None:
    first = series.runs[0].log
    times = [math.exp(run.log - first) for run in series.runs]
    colour = SOURCE_COLOURS[series.key.source]
    axes.plot(range(len(times)), times, "o", color=colour, markersize=3)
    ends = [0, *(step.at for step in series.steps), len(times)]
    for level, begin, end in zip(series.levels, ends, ends[1:], strict=False):
        axes.plot([begin - 0.5, end - 0.5], [math.exp(level - first)] * 2, color=INK, linewidth=1)
    for step in series.steps:
        axes.axvline(step.at - 0.5, color=MUTED, linewidth=0.8, linestyle="--")
        text = f"{100 * step.change:+.1f}% at {step.after}"
        free, side = (0.03, "bottom") if step.change > 0 else (0.97, "top")  # where the new level is not
        axes.annotate(f" {text}", (step.at - 0.5, free), xycoords=("data", "axes fraction"), fontsize=7, va=side)
    axes.set_title(clipped(f"{series.label} {series.key.point_id} {series.key.source}", 70), fontsize=8)
    every = -(-len(times) // _TICKS)
    named = range(0, len(times), every)
    axes.set_xticks(list(named), [clipped(series.runs[place].revision, 8) for place in named], fontsize=7)
    axes.set_ylabel("over the first", fontsize=7)
    axes.grid(axis="y")
