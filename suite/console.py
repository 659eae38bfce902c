"""What the terminal shows: tables, and the progress of a running sweep."""

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from suite.launch.doctor import Finding
from suite.launch.job import Job
from suite.launch.plan import Row
from suite.launch.status import PointState
from suite.records.schema import Record

_WIDTH = None if sys.stdout.isatty() else 240  # a file or a pipe has no width of its own
out = Console(highlight=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")
_STYLES = {
    "ok": "green",
    "failed": "red",
    "oom": "red",
    "invalid": "yellow",
    "running": "cyan",
    "missing": "dim",
}


def styled(status: str) -> str:
    """A status in its colour."""
    style = _STYLES.get(status)
    return f"[{style}]{status}[/]" if style else status


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str] = ()) -> Table:
    """A plain table; the `numeric` columns are set right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        last = column == columns[-1]
        made.add_column(column, justify="right" if column in numeric else "left", overflow="fold", no_wrap=not last)
    for row in rows:
        made.add_row(*row)
    return made


def label(job: Job) -> str:
    """A point in a few words: layout, schedule, id."""
    point = job.point
    return f"{point.layout} {point.schedule_label} m={point.microbatches} {point.id}"


class SweepProgress:
    """Shows which point runs, its iteration, its rate and the time left; plain lines where there is no terminal."""

    def __init__(self, launches: int, quiet: bool = False) -> None:
        self.launches = launches
        self.quiet = quiet
        self.finished = 0
        self.begun = time.monotonic()
        live = sys.stdout.isatty() and not quiet
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
            console=out, transient=True, disable=not live,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=1.0, note="")
        self.done_iterations = 0
        self.started = 0.0
        self.tokens_per_second = 0.0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def _place(self) -> str:
        return f"{self.finished + 1}/{self.launches}"

    def _left(self, part: float) -> str:
        """Time left for the sweep, from the launches so far."""
        share = (self.finished + part) / self.launches
        spent = time.monotonic() - self.begun
        return f"{spent / share - spent:.0f} s left" if share > 0 else ""

    def start(self, job: Job) -> None:
        """A launch begins."""
        self.started = time.monotonic()
        self.done_iterations = 0
        self.tokens_per_second = 0.0
        self.bar.update(self.task, description=f"{self._place()} {label(job)}", completed=0, note="starting")

    def iteration(self, job: Job, samples: dict[str, Any]) -> None:
        """The launch has finished an iteration."""
        measure, point = job.point.measure, job.point
        self.done_iterations += 1
        self.tokens_per_second = point.training.global_batch * point.model.seq_length / samples["seconds"]
        part = self.done_iterations / (measure.warmup + measure.iterations)
        note = (
            f"iteration {self.done_iterations}/{measure.warmup + measure.iterations} "
            f"{self.tokens_per_second:,.0f} tokens/s loss {samples['loss']:.3f} {self._left(part)}"
        )
        self.bar.update(self.task, completed=part, note=note)

    def end(self, job: Job, record: Record) -> None:
        """The launch has its record: one line that stays."""
        place = self._place()
        self.finished += 1
        seconds = time.monotonic() - self.started
        rate = f"{self.tokens_per_second:,.0f} tokens/s" if record.status == "ok" else escape(first_line(record.reason))
        if not self.quiet:
            out.print(
                f"{place} {label(job)} {styled(record.status)} {seconds:.1f} s, {rate}",
                markup=True,
                soft_wrap=True,
            )


def first_line(text: str | None) -> str:
    """The first line of a reason."""
    return (text or "").split("\n", 1)[0]


def plan_table(rows: Sequence[Row]) -> Table:
    """A plan: valid points with their sizes, the others with what they break."""
    columns = ("id", "point", "ranks", "m", "layers/stage", "parameters", "FLOPs/iteration", "state/rank", "")
    body = [
        (
            row.planned.point_id,
            row.planned.label,
            *(_count(row.ranks), _count(row.microbatches)),
            ",".join(str(n) for n in row.layers_per_stage or ()),
            *(_scaled(row.parameters), _scaled(row.model_flops), _scaled(row.state_bytes, "B")),
            "[yellow]invalid[/]: " + escape("; ".join(row.planned.reasons)) if row.planned.reasons else "",
        )
        for row in rows
    ]
    return table(columns, body, numeric=columns[2:4] + columns[5:8])


def status_table(rows: Sequence[PointState]) -> Table:
    """Where each point stands."""
    body = [
        (
            row.planned.point_id,
            row.planned.label,
            styled(row.state),
            str(row.launches),
            f"iteration {row.iterations}" if row.iterations is not None else escape(first_line(row.reason)),
        )
        for row in rows
    ]
    return table(("id", "point", "state", "launches", ""), body, numeric=("launches",))


def doctor_table(findings: Sequence[Finding]) -> Table:
    """What was found on this machine."""
    marks = {True: "[green]ok[/]", False: "[red]missing[/]", None: "[dim]-[/]"}
    return table(("what", "", "found"), [(f.what, marks[f.ok], escape(f.detail)) for f in findings])


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def _scaled(number: float | None, unit: str = "") -> str:
    """A number with three digits and a decimal prefix."""
    if number is None:
        return ""
    steps = min(int(math.log10(number) // 3), len(_PREFIXES) - 1) if number >= 1 else 0
    return f"{number / 1000**steps:.3g} {_PREFIXES[steps]}{unit}".strip()
