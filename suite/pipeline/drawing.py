"""Timelines drawn as text and SVG on one time axis, and written as a table and as a trace for Perfetto."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, RECOMPUTE, WEIGHT_GRADIENT, Action
from suite.pipeline.timeline import Span, Timeline

COLOURS = {
    FORWARD: "#4C78A8",
    BACKWARD: "#F58518",
    INPUT_GRADIENT: "#54A24B",
    WEIGHT_GRADIENT: "#E45756",
    RECOMPUTE: "#B79A20",
}
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRADIENT: "input gradient",
    WEIGHT_GRADIENT: "weight gradient",
    RECOMPUTE: "recomputation",
}
_LETTERS = {FORWARD: "", BACKWARD: "B", INPUT_GRADIENT: "I", WEIGHT_GRADIENT: "W", RECOMPUTE: "R"}
_INK = "#1f2933"
_REPLICA_LOOK = f'stroke="{_INK}" stroke-width="1.5" rx="7"'
_PLAIN_LOOK = 'stroke="white"'
_ROW, _LABEL, _WIDTH, _TITLE, _TICKS = 26, 60, 1100, 26, 5
_MOST_CHARACTERS = 10_000_000  # of a drawing in text that is not cut at a width


@dataclass(frozen=True)
class Panel:
    """One timeline of a drawing, and its title."""

    title: str
    timeline: Timeline

    @property
    def end(self) -> float:
        """The last end of an action."""
        return max(row[-1].end for row in self.timeline.ranks)


_SAMPLED = 500  # actions of a rank
_FIELDS = len(Action._fields)


class _Look:
    """What all panels of a drawing share: the kinds, chunks and replicas that have an entry in the legend."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self.kinds: dict[str, None] = {}
        self.chunks: dict[tuple[int, int, int, int], int] = {}  # (panel, rank, replica, stage) -> index on its rank
        self.last_microbatch = self.last_slice = self.last_replica = 0
        hosted: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        for number, panel in enumerate(panels):
            for row in panel.timeline.ranks:
                fields: list[Any] = list(chain.from_iterable(span[1] for span in row))  # those of all actions in a row
                kinds, hosts, microbatches, slices, replicas = (fields[field::_FIELDS] for field in range(_FIELDS))
                self.kinds.update(dict.fromkeys(kinds))
                for stage, replica in set(zip(hosts, replicas, strict=True)):
                    hosted[number, row[0].rank, replica].add(stage)
                self.last_microbatch = max(self.last_microbatch, max(microbatches))
                self.last_slice = max(self.last_slice, max(slices))
                self.last_replica = max(self.last_replica, max(replicas))
        for (number, rank, replica), stages in hosted.items():
            for index, stage in enumerate(sorted(stages)):
                self.chunks[number, rank, replica, stage] = index
        self.last_chunk = max(self.chunks.values())

    def chunk(self, panel: int, span: Span) -> int:
        """Which of its rank's stages the action is of, counted in the order of the model."""
        return self.chunks[panel, span.rank, span.action.replica, span.action.stage]

    def cell(self, panel: int, span: Span) -> str:
        """The action in text: kind, microbatch, slice, chunk, replica."""
        action = span.action
        part = f"/{action.slice}" if self.last_slice else ""
        replica = "'" * action.replica
        return f"{_LETTERS[action.kind]}{action.microbatch}{part}{_mark(self.chunk(panel, span))}{replica}"

    def longest_cell(self) -> int:
        """An upper bound to the length of a cell."""
        letter = max(len(_LETTERS[kind]) for kind in self.kinds)
        part = len(f"/{self.last_slice}") if self.last_slice else 0
        return letter + len(str(self.last_microbatch)) + part + len(_mark(self.last_chunk)) + self.last_replica

    def entries(self) -> list[str]:
        """The legend in text."""
        entries = [f"{_LETTERS[kind]}0 {name}" for kind, name in NAMES.items() if kind in self.kinds]
        if self.last_slice:
            entries.append("/1 slice 1 of the sequence")
        if self.last_chunk:
            marks = ", ".join(_mark(chunk) for chunk in range(1, min(self.last_chunk, 3) + 1))
            entries.append(f"{marks}{', ...' if self.last_chunk > 3 else ''} later chunks of the rank")
        if self.last_replica:
            entries.append("' replica 1")
        return [*entries, ". idle"]


def _mark(chunk: int) -> str:
    """No letter for a rank's first chunk, a for the second, b for the third; aa follows on z."""
    return chr(ord("a") + (chunk - 1) % 26) * (1 + (chunk - 1) // 26) if chunk else ""


def as_text(panels: Sequence[Panel], width: int | None = None, unit: str = "") -> str:
    """A row a rank; each action is its microbatch's number over the time it takes; dots are idle.

    Forwards are plain, other actions carry their kind's letter; a last line explains them. Several panels have their
    titles and one scale. Lines longer than `width` are cut, those of a drawing without one only when it gets huge.
    """
    look = _Look(panels)
    scale = (look.longest_cell() + 1) / min(_mean_of_a_kind(panel) for panel in panels)
    ranks = [len(panel.timeline.ranks) for panel in panels]
    digits = max(2, len(str(max(ranks) - 1)))
    room = (width or max(1000, _MOST_CHARACTERS // sum(ranks))) - len("rank  |") - digits
    lines = []
    for number, panel in enumerate(panels):
        if len(panels) > 1:
            lines.append(panel.title)
        columns = round(panel.end * scale)
        for rank, row in enumerate(panel.timeline.ranks):
            cells = ["."] * min(columns, room)
            for span in row:
                first, last = round(span.start * scale), min(round(span.end * scale), len(cells))
                if first >= len(cells):
                    break
                cells[first:last] = look.cell(number, span)[: last - first].ljust(last - first)
            shown = "".join(cells)
            lines.append(f"rank {rank:>{digits}} |" + (f"{shown}|" if columns < room else f"{shown[: room - 1]}…"))
    return "\n".join([*lines, f"{', '.join(look.entries())}; a column is {1 / scale:.4g}{unit}"])


def _mean_of_a_kind(panel: Panel) -> float:
    """The mean time of the shortest kind; the shortest action of a measured timeline would be an accident.

    A rank's first actions are enough: it is what a column's width is taken from.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for row in panel.timeline.ranks:
        for _, action, start, end in row[:_SAMPLED]:
            times[action.kind].append(end - start)
    return min(sum(of_kind) / len(of_kind) for of_kind in times.values())


def as_svg(panels: Sequence[Panel], unit: str = "") -> str:
    """A self-contained SVG: a row a rank, a box an action with its microbatch, later chunks lighter, and a legend."""
    look = _Look(panels)
    end = max(panel.end for panel in panels)
    scale = (_WIDTH - _LABEL - 20) / end
    parts: list[str] = []
    y = 0
    for number, panel in enumerate(panels):
        parts.append(f'<text x="4" y="{y + 18}" font-size="14">{escape(panel.title)}</text>')
        y += _TITLE
        for rank, row in enumerate(panel.timeline.ranks):
            parts.append(f'<text x="4" y="{y + 16}">rank {rank}</text>')
            for span in row:
                parts += _box(span, look.chunk(number, span) / max(1, look.last_chunk), y, scale)
            y += _ROW
    parts += _axis(end, scale, y, unit)
    parts += _legend(look, y + _ROW)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 2 * _ROW}" font-family="sans-serif" '
            'font-size="11">',
            *parts,
            "</svg>\n",
        ]
    )


def _box(span: Span, chunk: float, y: int, scale: float) -> list[str]:
    """An action's box, and its microbatch where there is room; `chunk` goes from 0, the first, to 1, the last."""
    action, x, wide = span.action, _LABEL + span.start * scale, (span.end - span.start) * scale
    box = (
        f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW - 4}" fill="{COLOURS[action.kind]}" '
        f'fill-opacity="{1 - 0.55 * chunk:.2f}" {_REPLICA_LOOK if action.replica else _PLAIN_LOOK}>'
        f"<title>{escape(str(action))}</title></rect>"
    )
    if wide <= 7 * len(str(action.microbatch)) + 2:
        return [box]
    ink = _INK if chunk else "white"
    text = f'<text x="{x + wide / 2:.2f}" y="{y + 15}" text-anchor="middle" fill="{ink}">{action.microbatch}</text>'
    return [box, text]


def _axis(end: float, scale: float, y: int, unit: str) -> list[str]:
    """Ticks at round times."""
    rough = end / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))
    parts = []
    for tick in range(int(end / step * (1 + 1e-9)) + 1):
        x = _LABEL + tick * step * scale
        parts.append(f'<path d="M{x:.2f} {y}v4" stroke="{_INK}"/>')
        parts.append(f'<text x="{x:.2f}" y="{y + 16}" text-anchor="middle">{tick * step:.4g}{unit}</text>')
    return parts


def _legend(look: _Look, y: int) -> list[str]:
    entries = [(COLOURS[kind], 1.0, _PLAIN_LOOK, name) for kind, name in NAMES.items() if kind in look.kinds]
    if look.last_chunk:
        entries.append((COLOURS[FORWARD], 0.45, _PLAIN_LOOK, "lighter: later chunk of the rank"))
    if look.last_replica:
        entries.append((COLOURS[FORWARD], 1.0, _REPLICA_LOOK, "outlined: replica 1"))
    parts, x = ['<g class="legend">'], _LABEL
    for colour, opacity, outline, name in entries:
        parts.append(
            f'<rect x="{x}" y="{y}" width="18" height="14" fill="{colour}" fill-opacity="{opacity}" {outline}/>'
        )
        parts.append(f'<text x="{x + 24}" y="{y + 11}">{name}</text>')
        x += 44 + 6 * len(name)
    return [*parts, "</g>"]


def as_csv(timeline: Timeline) -> str:
    """Every action with its rank and times, a row each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "kind", "stage", "microbatch", "slice", "replica", "start", "end"])
    for row in timeline.ranks:
        for span in row:
            writer.writerow([span.rank, *span.action, span.start, span.end])
    return out.getvalue()


def as_perfetto(panels: Iterable[Panel], unit_seconds: float = 1e-3) -> str:
    """A Chrome trace (JSON) that Perfetto opens, a process a panel; one unit of a timeline is `unit_seconds`."""
    events: list[dict[str, object]] = []
    for process, panel in enumerate(panels):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": panel.title}})
        for rank, row in enumerate(panel.timeline.ranks):
            thread = {"pid": process, "tid": rank}
            events.append({"ph": "M", **thread, "name": "thread_name", "args": {"name": f"rank {rank}"}})
            for span in row:
                times = {"ts": span.start * unit_seconds * 1e6, "dur": (span.end - span.start) * unit_seconds * 1e6}
                about = {"name": str(span.action), "cat": span.action.kind, "args": span.action._asdict()}
                events.append({"ph": "X", **thread, **about, **times})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
