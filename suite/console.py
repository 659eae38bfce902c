"""What the terminal shows: tables, and the progress of a running sweep."""

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from suite.experiment.description import Description
from suite.experiment.point import Point

if TYPE_CHECKING:  # what is shown is made elsewhere; importing all of it here would take its time
    from suite.launch.doctor import Finding
    from suite.launch.job import Job
    from suite.launch.plan import Row
    from suite.launch.status import PointState
    from suite.records.schema import Record
    from suite.report.ablation import Ablated
    from suite.report.score import Score

_WIDTH = None if sys.stdout.isatty() else 240  # a file or a pipe has no width of its own
out = Console(highlight=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")
_STYLES = {
    "ok": "green",
    "failed": "red",
    "oom": "red",
    "invalid": "yellow",
    "starting": "cyan",
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
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        width = None if last else max(len(Text.from_markup(cell)) for cell in (column, *(row[index] for row in rows)))
        justify: Literal["right", "left"] = "right" if column in numeric else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=not last, min_width=width)
    for row in rows:
        made.add_row(*row)
    return made


def label(point: Point) -> str:
    """A point in a few words: layout, schedule, id."""
    return f"{point.layout} {point.schedule_label} m={point.microbatches} {point.id}"


class SweepProgress:
    """Shows which point runs, its iteration, its rate and the time left; plain lines where there is no terminal."""

    def __init__(self, launches: int, quiet: bool = False) -> None:
        self.launches = launches
        self.quiet = quiet
        self.finished = 0
        self.begun = time.monotonic()
        live = sys.stdout.isatty() and not quiet
        columns = (TextColumn("{task.description}"), TextColumn("{task.fields[note]}"), BarColumn(bar_width=12))
        self.bar = Progress(*columns, console=out, transient=True, disable=not live)
        self.task = self.bar.add_task("", total=1.0, note="")
        self.done_iterations = 0
        self.started = 0.0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def _place(self) -> str:
        return f"{self.finished + 1}/{max(self.launches, self.finished + 1)}"  # a launch may get a successor

    def _left(self) -> str:
        """Time left for the sweep, from the launches that have ended."""
        if not self.finished:
            return ""
        each = (self.started - self.begun) / self.finished
        left = max(0.0, each * (self.launches - self.finished) - (time.monotonic() - self.started))
        return f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"

    def skip(self, point: Point, launches: int, why: str) -> None:
        """Some launches of a point are left to whoever else measures it."""
        self.launches -= launches
        err.print(f"left out {label(point)}: {why}", markup=False)

    def notice(self, text: str) -> None:
        """Something that whoever waits should know."""
        err.print(text, markup=False, soft_wrap=True)

    def start(self, job: "Job") -> None:
        """A launch begins."""
        self.started = time.monotonic()
        self.done_iterations = 0
        note = f"starting{self._left()}"
        self.bar.update(self.task, description=f"{self._place()} {label(job.point)}", completed=0, note=note)

    def iteration(self, job: "Job", samples: dict[str, Any]) -> None:
        """The launch has finished an iteration."""
        measure = job.point.measure
        self.done_iterations += 1
        iterations = measure.warmup + measure.iterations
        rate = _rate(job.point, samples["seconds"], job.source)
        note = f"{self.done_iterations}/{iterations} {rate}{self._left()}"
        self.bar.update(self.task, completed=self.done_iterations / iterations, note=note)

    def end(self, job: "Job", record: "Record") -> None:
        """The launch has its record: one line that stays, with the rate that the report will show."""
        place = self._place()
        self.finished += 1
        if self.quiet:
            return
        rate = escape(first_line(record.reason))
        if record.status == "ok" and record.iterations:
            seconds = median(record.iterations.seconds[record.iterations.warmup :])
            rate = _rate(job.point, seconds, record.source)
            from suite.records.remarks import remark

            if odd := remark(record):
                rate += f", [yellow]{odd}[/]"
        spent = (datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started)).total_seconds()
        out.print(
            f"{place} {label(job.point)} {styled(record.status)} {spent:.1f} s, {rate}", markup=True, soft_wrap=True
        )


def _rate(point: Point, seconds: float, source: str) -> str:
    """Tokens of the global batch per second, with where they are from if nobody measured them."""
    rate = f"{point.training.global_batch * point.model.seq_length / seconds:,.0f} tokens/s"
    return rate if source == "measured" else f"{rate}, {source}"


def first_line(text: str | None) -> str:
    """The first line of a reason."""
    return (text or "").split("\n", 1)[0]


def experiment_table(experiments: Sequence[Description]) -> Table:
    """Experiments with their scales, points and titles."""
    body = [
        (f"  {one.name}", ", ".join(f"{scale}: {count}" for scale, count in one.points.items()), escape(one.title))
        for one in experiments
    ]
    return table(("  name", "points by scale", "title"), body)


def plan_table(rows: "Sequence[Row]") -> Table:
    """A plan's points with their sizes and what is predicted; what they all have in common stands in `plan_heading`."""
    common = {
        "parameters": [_scaled(row.parameters) for row in rows],
        "FLOPs/iteration": [_scaled(row.model_flops) for row in rows],
    }
    predictions = {
        "predicted memory": [_memory(row) for row in rows],
        "s/iteration": [_rounded(row.iteration_seconds) for row in rows],
        "GPU-hours/300e9 tokens": ["" if row.gpu_hours is None else f"{row.gpu_hours:,.0f}" for row in rows],
    }
    columns = {
        "id": [row.planned.point_id for row in rows],
        "ranks": [_count(row.ranks) for row in rows],
        "m": [_count(row.microbatches) for row in rows],
        "layers/stage": [_layers(row.layers_per_stage or ()) for row in rows],
        **{name: column for name, column in common.items() if len(set(column)) > 1},
        "state/rank": [_scaled(row.state_bytes, "B") for row in rows],
        **{name: column for name, column in predictions.items() if any(column)},
        "point": [escape(row.planned.label) + (" [yellow]invalid[/]" if row.planned.reasons else "") for row in rows],
    }
    words = ("id", "layers/stage", "point")
    numeric = [name for name in columns if name not in words]
    return table(list(columns), list(zip(*columns.values(), strict=True)), numeric=numeric)


def _memory(row: "Row") -> str:
    """Predicted against what the device has, and the verdict, in its colour where it is not that the point fits."""
    if row.memory is None:
        return ""
    style = {"does not fit": "red", "undecided": "yellow"}.get(row.memory.verdict, "green")
    sizes = f"{row.memory.predicted / 1e9:.1f}/{row.memory.capacity / 1e9:.1f} GB"
    return f"{sizes} [{style}]{row.memory.verdict}[/]"


def _rounded(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g}"


def plan_heading(rows: "Sequence[Row]") -> str:
    """The sizes that all points of a plan share."""
    parameters = {_scaled(row.parameters) for row in rows}
    flops = {_scaled(row.model_flops) for row in rows}
    parts = [f"{value} {name}" for name, found in (("parameters", parameters), ("FLOPs per iteration", flops))
             if len(found) == 1 and (value := next(iter(found)))]  # fmt: skip
    return ", ".join(parts)


def _layers(counts: Sequence[float]) -> str:
    """Layers per stage: `8 x 1` for eight stages of one layer, or a list where they differ."""
    if len(set(counts)) == 1 and len(counts) > 1:
        return f"{len(counts)} x {counts[0]}"
    return ",".join(str(count) for count in counts)


def status_table(rows: "Sequence[PointState]") -> Table:
    """Where each point stands."""
    body = [
        (
            row.planned.point_id,
            row.planned.label,
            styled(row.state),
            str(row.launches),
            f"iteration {row.iterations}" if row.iterations else escape(first_line(row.reason)),
        )
        for row in rows
    ]
    return table(("id", "point", "state", "launches", ""), body, numeric=("launches",))


def doctor_table(findings: "Sequence[Finding]") -> Table:
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


def scored_rows_table(score: "Score") -> Table:
    """Every row with what is predicted of it."""
    rows = [
        [
            escape(one.row.config_id or f"line {one.row.line}"),
            f"{one.row.metric}, {one.row.unit}",
            f"{one.measured:.4g}",
            f"{one.predicted:.4g}",
            f"{100 * one.error:+.1f} %",
        ]
        for one in score.rows
    ]
    return table(["row", "metric", "measured", "predicted", "error"], rows, ["measured", "predicted", "error"])


def skipped_text(score: "Score") -> str:
    """How many rows are outside the model, by the reason."""
    counts = Counter(one.reason for one in score.skipped)
    return "\n".join(f"skipped {count}: {reason}" for reason, count in counts.most_common()) or "no row was skipped"


def ablation_table(ablated: "Sequence[Ablated]") -> Table:
    """A row for each effect: by how many points the mean error of each set of rows grows without it."""
    everything = ablated[0].errors
    names = list(everything)
    heads = [str(number) for number in range(1, len(names) + 1)]
    rows = [[escape(one.effect or "nothing left out"), *_grown(one.errors, everything)] for one in ablated]
    made = table(["without", *heads], rows, heads)
    made.caption = "\n".join(f"{head}: {escape(name)}" for head, name in zip(heads, names, strict=True))
    made.caption_justify = "left"
    return made


def _grown(errors: dict[str, float], everything: dict[str, float]) -> list[str]:
    if errors is everything:
        return [f"{100 * error:.1f}" for error in errors.values()]
    return [f"{100 * (error - everything[name]):+.1f}" for name, error in errors.items()]
