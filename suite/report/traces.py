"""Timelines drawn from the trace of one iteration as it ran, one figure for each schedule and source."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from suite.pipeline.drawing import COLOURS, NAMES
from suite.pipeline.timeline import Span, Timeline
from suite.records.store import SOURCES
from suite.report.predicted import predicted, traced
from suite.report.style import (
    INK,
    MUTED,
    WIDTH,
    Drawn,
    legend,
    lighter,
    new_figure,
    styled,
    title,
)
from suite.report.summary import Launch, PointRow

MOST_TIMELINES = 12

_ROW = 0.31  # inches, less where many rows would make the figure taller than `_TALLEST`
_TALLEST = 7.0
_TEXT = 6.5  # points
_AXES_POINTS = (WIDTH - 0.9) * 72
_MOST_TEXT = 1500
_PALEST = 0.65  # how much of a rank's last chunk is white
_DARK_EDGE = 0.9  # points, around what belongs to another replica than the first


@dataclass(frozen=True)
class _Strip:
    """Where a timeline lies within a rank's row, from its top in parts of the row's height."""

    top: float
    height: float
    text: bool


_ALONE = _Strip(0.08, 0.84, True)
_THIN, _BELOW = _Strip(0.06, 0.2, False), _Strip(0.28, 0.66, True)  # predicted, and what ran


def timelines(point_rows: Sequence[PointRow]) -> list[Drawn]:
    """One timeline for each schedule and source that left a trace, at most `MOST_TIMELINES`: the measured ones first.

    Of several points it takes a pipelined one, one that is not oversubscribed, and then the deepest pipeline. Above
    what ran lies what the event simulation predicts from the mean times of its actions.
    """
    chosen: dict[tuple[int, str], Launch] = {}
    for row in point_rows:
        found = [one for one in row.used if one.record.trace and one.record.trace.spans]
        if not found:
            continue
        launch = max(found, key=lambda one: one.finished)
        key = (SOURCES.index(launch.record.source), launch.point.schedule_label)
        if key not in chosen or _worth(launch) > _worth(chosen[key]):
            chosen[key] = launch
    ordered = [launch for _, launch in sorted(chosen.items())]
    shown, left_out = ordered[:MOST_TIMELINES], ordered[MOST_TIMELINES:]
    return [
        _timeline(f"timeline-{number}", launch, _more(left_out) if number == len(shown) else "")
        for number, launch in enumerate(shown, 1)
    ]


def _more(left_out: Sequence[Launch]) -> str:
    """The sentence that says which timelines are not drawn."""
    if not left_out:
        return ""
    by_source: dict[str, list[str]] = defaultdict(list)
    for launch in left_out:
        by_source[launch.record.source].append(launch.point.schedule_label)
    which = "; ".join(f"{source}: {', '.join(labels)}" for source, labels in by_source.items())
    return f" {len(left_out)} more timelines are not drawn ({which}); suite schedule --trace draws any record's."


def crowding(launch: Launch) -> str:
    """What the ranks of an oversubscribed launch share, as far as its environment says."""
    environment, text = launch.record.environment, _counted(launch.point.parallel.ranks, "rank")
    if environment.get("device") not in (None, "cpu"):
        return f"{text} share {environment['device']}"
    if threads := environment.get("threads_per_rank"):
        text += f" x {_counted(threads, 'thread')}"
    if cores := environment.get("cores"):
        text += f" on {_counted(cores, 'core')}"
    return text


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _worth(launch: Launch) -> tuple[bool, bool, int, int]:
    pipeline = launch.point.parallel.pipeline
    return pipeline > 1, not launch.record.oversubscribed, pipeline, -launch.point.microbatches


def _timeline(name: str, launch: Launch, more: str) -> Drawn:
    record, point = launch.record, launch.point
    assert record.trace is not None
    ran = traced(record.trace)
    forecast = predicted(point, ran) if record.source in ("measured", "emulated") else None
    shown = {_BELOW: ran, _THIN: forecast} if isinstance(forecast, Timeline) else {_ALONE: ran}
    total = max(row[-1].end for times in shown.values() for row in times.ranks)
    spans = [span for row in ran.ranks for span in row]
    kinds = [kind for kind in COLOURS if any(span.action.kind == kind for span in spans)]
    where = f"{point.schedule_label} {point.layout}, m={point.microbatches}, point {record.point_id}"
    with styled():
        figure = new_figure(1.35 + min(_ROW * (1.25 if _THIN in shown else 1) * len(ran.ranks), _TALLEST))
        axes = figure.subplots()
        look = _Look(spans, total)
        for strip, times in shown.items():
            _draw(axes, times, strip, look)
        axes.set(xlim=(0, 1000 * total), ylim=(len(ran.ranks), 0), xlabel="ms", ylabel="pipeline rank")
        axes.set_yticks([index + 0.5 for index in range(len(ran.ranks))], [str(row[0].rank) for row in ran.ranks])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        legend(figure, _patches(kinds, look, _THIN in shown))
        heading = f"{record.source}: {where}"
        if record.oversubscribed:
            heading += f"\noversubscribed: {crowding(launch)}; gaps are not bubble"
        title(figure, heading)
    claim = "Gaps are not bubble: the ranks waited for each other." if record.oversubscribed else "Gaps are idle time."
    return Drawn(
        name,
        f"Timeline, {point.schedule_label}, {record.source}",
        f"Timeline of iteration {record.trace.iteration} as {record.source}: {where}; {len(ran.ranks)} pipeline ranks, "
        f"{len(spans)} actions in {1000 * ran.makespan:.4g} ms.",
        f"Iteration {record.trace.iteration} as {record.source}, one row a pipeline rank at the first tensor and "
        f"data coordinate; numbers are microbatches. {claim}{_compared(launch, ran, forecast)}{more}",
        figure,
    )


def _compared(launch: Launch, ran: Timeline, forecast: Timeline | str | None) -> str:
    """What was predicted beside what ran, or why nothing was predicted."""
    if forecast is None:
        return ""
    if isinstance(forecast, str):
        return f" Nothing is predicted from the mean times: {forecast}."
    ends = f"It takes {1000 * forecast.makespan:.4g} ms, and the iteration took {1000 * ran.makespan:.4g} ms"
    bubbles = f"; the bubbles are {100 * forecast.bubble_over_ideal:.3g} % and {100 * ran.bubble_over_ideal:.3g} %"
    return (
        " The thin strip above each row is predicted from the mean times: the event simulation of the same program, "
        "each action taking its kind's mean and messages no time. "
        f"{ends}{'' if launch.record.oversubscribed else bubbles}."
    )


class _Look:
    """What strips share: which of its rank's stages an action is of, and how much room there is."""

    def __init__(self, spans: Sequence[Span], total: float) -> None:
        stages: dict[tuple[int, int], set[int]] = defaultdict(set)
        for span in spans:
            stages[span.rank, span.action.replica].add(span.action.stage)
        self.stages = {key: sorted(found) for key, found in stages.items()}
        self.chunks = max(map(len, self.stages.values()))
        self.replicas = 1 + max(span.action.replica for span in spans)
        self.ranks = len({span.rank for span in spans})
        self.total = total
        self.text = len(spans) <= _MOST_TEXT and total > 0 and self.ranks * _ROW <= _TALLEST
        self.edge = min(_DARK_EDGE, 0.1 * self.room(spans[0]))

    def chunk(self, span: Span) -> int:
        """The action's stage counted among those of its rank and replica, in the order of the model."""
        return self.stages[span.rank, span.action.replica].index(span.action.stage)

    def colour(self, kind: str, chunk: int) -> str:
        """The kind's colour, lighter for later chunks."""
        return lighter(COLOURS[kind], _PALEST * chunk / max(1, self.chunks - 1))

    def room(self, span: Span) -> float:
        """The box's width in points."""
        return (span.end - span.start) / self.total * _AXES_POINTS if self.total > 0 else 0.0


def _draw(axes: Axes, times: Timeline, strip: _Strip, look: _Look) -> None:
    """Boxes of all actions, and their microbatches where there is room."""
    boxes: dict[tuple[str, int, int], list[Rectangle]] = defaultdict(list)
    for index, row in enumerate(times.ranks):
        for span in row:
            box = Rectangle((1000 * span.start, index + strip.top), 1000 * (span.end - span.start), strip.height)
            boxes[span.action.kind, look.chunk(span), span.action.replica].append(box)
            if strip.text and look.text:
                _microbatch(axes, span, index + strip.top + strip.height / 2, look)
    for kind, chunk, replica in sorted(boxes, key=lambda key: key[2]):  # dark edges over white ones
        edge, width = (INK, look.edge) if replica else ("white", 0.4)
        patches, colour = boxes[kind, chunk, replica], look.colour(kind, chunk)
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor=edge, linewidth=width))


def _microbatch(axes: Axes, span: Span, middle: float, look: _Look) -> None:
    """Writes the microbatch into a box that has room for it."""
    action = span.action
    text = f"{action.microbatch}" + "'" * action.replica
    if look.room(span) <= (0.65 * len(text) + 0.4) * _TEXT:
        return
    light = action.kind == "BW" or _PALEST * look.chunk(span) / max(1, look.chunks - 1) > 0.3
    axes.text(
        *(1000 * (span.start + span.end) / 2, middle, text),
        ha="center",
        va="center_baseline",
        fontsize=_TEXT,
        color=INK if light else "white",
    )


def _patches(kinds: Sequence[str], look: _Look, forecast: bool) -> list[Patch]:
    handles = [Patch(color=COLOURS[kind], label=f"{kind}, {NAMES[kind]}") for kind in kinds]
    if look.chunks > 1:
        handles.append(Patch(color=lighter(MUTED), label="lighter: later chunks of the rank"))
    if look.replicas > 1:
        handles.append(Patch(facecolor="white", edgecolor=INK, label="dark edge, ': replica 1"))
    if forecast:
        handles.append(Patch(color="none", label="thin: predicted from the mean times"))
    return handles
