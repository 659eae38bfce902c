"""Timelines drawn from the trace of one iteration as it ran, one figure for each schedule and source."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from suite.records.schema import Trace, TraceSpan
from suite.report.style import (
    INK,
    KIND_COLOURS,
    KIND_NAMES,
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

_ROW = 0.31  # inches, less where many rows would make the figure taller than `_TALLEST`
_TALLEST = 7.0
_TEXT = 6.5  # points
_AXES_POINTS = (WIDTH - 0.9) * 72
_MOST_TEXT = 1500


def timelines(point_rows: Sequence[PointRow]) -> list[Drawn]:
    """One timeline for each schedule and source that left a trace.

    Of several points it takes a pipelined one, one that is not oversubscribed, and then the deepest pipeline.
    """
    chosen: dict[tuple[str, str], Launch] = {}
    for row in point_rows:
        traced = [one for one in row.used if one.record.trace and one.record.trace.spans]
        if not traced:
            continue
        launch = max(traced, key=lambda one: one.finished)
        key = (launch.record.source, launch.point.schedule_label)
        if key not in chosen or _worth(launch) > _worth(chosen[key]):
            chosen[key] = launch
    return [
        _timeline(f"timeline-{number}", launch, launch.record.trace)
        for number, (_, launch) in enumerate(sorted(chosen.items()), 1)
        if launch.record.trace
    ]


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


def _timeline(name: str, launch: Launch, trace: Trace) -> Drawn:
    record, point = launch.record, launch.point
    ranks = sorted({span.rank for span in trace.spans})
    total = max(span.end for span in trace.spans)
    kinds = [kind for kind in KIND_COLOURS if any(span.kind == kind for span in trace.spans)]
    where = f"{point.schedule_label} {point.layout}, m={point.microbatches}, point {record.point_id}"
    with styled():
        figure = new_figure(1.35 + min(_ROW * len(ranks), _TALLEST))
        axes = figure.subplots()
        for kind in kinds:
            for odd in (False, True):
                boxes = [
                    Rectangle((1000 * span.start, ranks.index(span.rank) - 0.42), _width(span), 0.84)
                    for span in trace.spans
                    if span.kind == kind and _chunk(span, point.parallel.pipeline) % 2 == odd
                ]
                colour = lighter(KIND_COLOURS[kind]) if odd else KIND_COLOURS[kind]
                axes.add_collection(PatchCollection(boxes, facecolor=colour, edgecolor="white", linewidth=0.4))
        _microbatches(axes, trace.spans, ranks, total, point.parallel.pipeline)
        axes.set(xlim=(0, 1000 * total), ylim=(len(ranks) - 0.5, -0.5), xlabel="ms", ylabel="pipeline rank")
        axes.set_yticks(range(len(ranks)), [str(index) for index in range(len(ranks))])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        legend(figure, _kind_patches(kinds, point.schedule.chunks))
        heading = f"{record.source}: {where}"
        if record.oversubscribed:
            heading += f"\noversubscribed: {crowding(launch)}; gaps are not bubble"
        title(figure, heading)
    claim = "Gaps are not bubble: the ranks waited for each other." if record.oversubscribed else "Gaps are idle time."
    return Drawn(
        name,
        f"Timeline, {point.schedule_label}, {record.source}",
        f"Timeline of iteration {trace.iteration} as {record.source}: {where}; {len(ranks)} pipeline ranks, "
        f"{len(trace.spans)} actions in {1000 * total:.4g} ms.",
        f"Iteration {trace.iteration} as {record.source}, one row a pipeline rank at the first tensor and "
        f"data coordinate; numbers are microbatches. {claim}",
        figure,
    )


def _width(span: TraceSpan) -> float:
    return 1000 * (span.end - span.start)


def _chunk(span: TraceSpan, pipeline: int) -> int:
    return span.stage // pipeline


def _microbatches(axes: Axes, spans: Sequence[TraceSpan], ranks: Sequence[int], total: float, pipeline: int) -> None:
    """Writes the microbatch into every box that has room for it."""
    if len(spans) > _MOST_TEXT or total <= 0:
        return
    for span in spans:
        text = str(span.microbatch)
        room = (span.end - span.start) / total * _AXES_POINTS
        if room > (0.65 * len(text) + 0.4) * _TEXT and len(ranks) * _ROW <= _TALLEST:
            axes.text(
                1000 * (span.start + span.end) / 2,
                ranks.index(span.rank),
                text,
                ha="center",
                va="center_baseline",
                fontsize=_TEXT,
                color=INK if _chunk(span, pipeline) % 2 or span.kind == "BW" else "white",
            )


def _kind_patches(kinds: Sequence[str], chunks: int) -> list[Patch]:
    handles = [Patch(color=KIND_COLOURS[kind], label=f"{kind}, {KIND_NAMES[kind]}") for kind in kinds]
    if chunks > 1:
        handles.append(Patch(color=lighter(MUTED), label="lighter: odd chunk"))
    return handles
