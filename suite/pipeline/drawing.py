"""Timelines drawn as text and SVG, and programs exported as CSV, torch's CSV and Perfetto traces."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from html import escape

from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from suite.pipeline.timeline import Span, Timeline

COLOURS = {FORWARD: "#4C78A8", BACKWARD: "#F58518", INPUT_GRADIENT: "#54A24B", WEIGHT_GRADIENT: "#E45756"}
OTHER_COLOUR = "#888888"
_ROW, _LABEL, _WIDTH = 26, 60, 1100


def as_text(timeline: Timeline, chunks: int, width: int | None = None) -> str:
    """A row a rank; each action is its microbatch's number over the time it takes; dots are idle.

    Forwards are plain, other actions carry their kind. With several chunks a letter names the chunk: none for the
    first, a for the second, b for the third. Lines longer than `width` are cut.
    """
    shortest = min(span.end - span.start for row in timeline.ranks for span in row)
    digits = max(len(_cell(span, chunks, len(timeline.ranks))) for row in timeline.ranks for span in row) + 1
    end = max(row[-1].end for row in timeline.ranks)
    scale = digits / shortest
    lines = []
    for rank, row in enumerate(timeline.ranks):
        cells = ["."] * round(end * scale)
        for span in row:
            first, last = round(span.start * scale), round(span.end * scale)
            cells[first:last] = list(_cell(span, chunks, len(timeline.ranks)).ljust(last - first))
        lines.append(f"rank {rank:>2} |" + "".join(cells) + "|")
    if width is None:
        return "\n".join(lines)
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in lines)


def _cell(span: Span, chunks: int, ranks: int) -> str:
    action = span.action
    chunk = action.stage // ranks if chunks > 1 else 0
    mark = chr(ord("a") + chunk - 1) if chunk else ""
    kind = "" if action.kind == FORWARD else {BACKWARD: "B", INPUT_GRADIENT: "I"}.get(action.kind, action.kind)
    return f"{kind}{action.microbatch}{mark}"


def as_svg(timeline: Timeline, title: str, chunks: int = 1) -> str:
    """A self-contained SVG: a row a rank, a box an action with its microbatch, later chunks lighter."""
    ranks = len(timeline.ranks)
    end = max(row[-1].end for row in timeline.ranks)
    scale = (_WIDTH - _LABEL - 10) / end
    height = 34 + _ROW * ranks
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<text x="4" y="18" font-size="14">{escape(title)}</text>',
    ]
    for rank, row in enumerate(timeline.ranks):
        y = 28 + rank * _ROW
        parts.append(f'<text x="4" y="{y + 16}">rank {rank}</text>')
        for span in row:
            action, x = span.action, _LABEL + span.start * scale
            wide = (span.end - span.start) * scale
            fade = 1 - 0.55 * (action.stage // ranks if chunks > 1 else 0) / max(1, chunks - 1)
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW - 4}" stroke="white" '
                f'fill="{COLOURS.get(action.kind, OTHER_COLOUR)}" fill-opacity="{fade:.2f}">'
                f"<title>{escape(str(action))}</title></rect>"
            )
            if wide > 7 * len(str(action.microbatch)) + 2:
                parts.append(
                    f'<text x="{x + wide / 2:.2f}" y="{y + 15}" text-anchor="middle" fill="white">'
                    f"{action.microbatch}</text>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def as_csv(timeline: Timeline) -> str:
    """Every action with its rank and times, a row each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "kind", "stage", "microbatch", "slice", "replica", "start", "end"])
    for row in timeline.ranks:
        for span in row:
            writer.writerow([span.rank, *span.action, span.start, span.end])
    return out.getvalue()


def as_perfetto(ranks: Sequence[Iterable[Span]], unit_seconds: float = 1e-3) -> str:
    """A Chrome trace (JSON) that Perfetto opens; one unit of the timeline is `unit_seconds`."""
    events: list[dict[str, object]] = []
    for rank, row in enumerate(ranks):
        events.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}})
        for span in row:
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": rank,
                    "name": str(span.action),
                    "cat": span.action.kind,
                    "ts": span.start * unit_seconds * 1e6,
                    "dur": (span.end - span.start) * unit_seconds * 1e6,
                    "args": span.action._asdict(),
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
