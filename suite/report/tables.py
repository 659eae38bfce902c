"""The columns of the report's tables, and the table for the terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from suite.report.ideal import FORMULA, GIVEN_TIMES, PACED_SOURCES
from suite.report.numbers import ABSENT, absent, duration, memory, percent, significant
from suite.report.summary import VARYING_PREFIX

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its heading, its heading in a terminal, what it means, and how it shows a row."""

    heading: str
    short: str
    meaning: str
    show: Callable[[Row], str]
    numeric: bool = True


def _number(key: str, digits: int = 3) -> Callable[[Row], str]:
    return lambda row: significant(row[key], digits)


def _percent(key: str) -> Callable[[Row], str]:
    return lambda row: percent(row[key])


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: ABSENT if absent(row[key]) else str(row[key])


def status(row: Row) -> str:
    """The status, and that the point was oversubscribed."""
    return f"{row['status']}, oversubscribed" if row["oversubscribed"] else str(row["status"])


def _bubble(row: Row) -> str:
    return f"{percent(row['bubble_measured_percent'])} / {percent(row['bubble_ideal_percent'])}"


def _spread(row: Row) -> str:
    between = row["launch_spread_percent"]
    return percent(row["spread_percent"]) + ("" if absent(between) else f" ({percent(between)})")


def _launches(row: Row) -> str:
    others = [
        f"{row[key]} {word}"
        for key, word in (("launches_failed", "not ok"), ("launches_older", "of older revisions"))
        if row[key]
    ]
    return f"{row['launches']}" + (f" ({', '.join(others)})" if others else "")


def _losses(row: Row) -> str:
    return f"{significant(row['first_loss'], 4)} → {significant(row['final_loss'], 4)}"


_HEAD = (
    Column("point", "point", "The configuration's identity; data.csv has it in full.", _text("point_id"), False),
    Column("layout", "(t,p,d)", "(tensor, pipeline, data) parallel sizes.", _text("layout"), False),
    Column(
        "schedule",
        "schedule",
        "The pipeline schedule; v is the number of model chunks per rank.",
        _text("schedule_label"),
        False,
    ),
)
_SOURCE = Column(
    "source",
    "source",
    "measured: real processes, computation and messages. emulated: real processes and messages, computation "
    "replaced by waiting. simulated: no processes. published: a paper's number.",
    _text("source"),
    False,
)
_RESULTS = (
    Column("ranks", "ranks", "Processes, t·p·d.", _text("ranks")),
    Column("m", "m", "Microbatches per pipeline and iteration.", _text("microbatches")),
    Column(
        "tokens/s",
        "tokens/s",
        "Tokens of the global batch over the median iteration time, all ranks together.",
        _number("tokens_per_second", 4),
    ),
    Column(
        "TFLOP/s per rank",
        "TFLOP/s/rank",
        "Executed operations (recomputation and padded vocabulary included) per second and rank.",
        _number("hardware_tflops_per_rank"),
    ),
    Column("petaFLOP/s", "PFLOP/s", "The same of all ranks together, in 1e15.", _number("hardware_petaflops")),
    Column(
        "% of peak (HFU)",
        "% of peak",
        "Hardware FLOPs utilisation: executed operations per second over the ranks' peak. This is the "
        "paper's percentage of theoretical peak.",
        _percent("hfu_percent"),
    ),
    Column(
        "MFU",
        "MFU",
        "Model FLOPs utilisation: the model's operations (no recomputation, declared vocabulary) per second "
        "over the ranks' peak.",
        _percent("mfu_percent"),
    ),
    Column(
        "days for 300B tokens",
        "days/300B",
        "Days to train this model on 300e9 tokens at this rate.",
        _number("days_300b_tokens"),
    ),
    Column(
        "bubble as run / ideal",
        "bubble/ideal",
        "Forward-backward time beyond the busiest rank's work, over that work, median of iterations; beside it the "
        "ideal: (p-1)/(v·m) for gpipe, 1f1b and interleaved, for every other schedule the event simulation of its "
        "program without messages, with F=B=W for measured points and with the pace's F, B and W for emulated and "
        "simulated ones. It holds for equal stages and actions: where they are unequal, or other programs stretch "
        "some, the measured one can be the smaller.",
        _bubble,
    ),
    Column("memory", "memory", "The highest peak of any rank.", lambda row: memory(row["memory_bytes"])),
    Column(
        "spread",
        "spread",
        "Interquartile range of the kept iterations over their median; in brackets (max-min)/median of the "
        "launches' medians.",
        _spread,
    ),
    Column("status", "status", "How the newest launches ended.", status, False),
)
_DETAILS = (
    Column(
        "iteration",
        "iteration",
        "Median iteration time of the slowest rank.",
        lambda row: duration(row["iteration_seconds"]),
    ),
    Column(
        "model TFLOP/s per rank",
        "model",
        "Operations of the model, attention in full.",
        _number("model_tflops_per_rank"),
    ),
    Column(
        "causal model TFLOP/s per rank",
        "causal",
        "The same with half of the attention core, as some other tools count.",
        _number("causal_model_tflops_per_rank"),
    ),
    Column(
        "model petaFLOP/s",
        "model PFLOP/s",
        "Operations of the model, all ranks together.",
        _number("model_petaflops"),
    ),
    Column(
        "peak TFLOP/s per rank",
        "peak",
        "What the percentages divide by; its source stands above.",
        _number("peak_tflops_per_rank", 4),
    ),
    Column(
        "bubble fraction",
        "bubble fraction",
        "The measured bubble as part of the forward-backward time.",
        _percent("bubble_fraction_percent"),
    ),
    Column(
        "activations in flight",
        "in flight",
        "The highest proved number of microbatches whose activations any rank holds, in shares of a rank: a chunk "
        "counts 1/v. For readiness in the order that it takes at the ideal's times.",
        _number("peak_activations"),
    ),
    Column(
        "speed-up",
        "speed-up",
        "Tokens/s over the fastest (1,1,1) point of the same model, batch, precision and device; of measured "
        "points only.",
        lambda row: ABSENT if absent(row["speedup"]) else f"{significant(row['speedup'])}×",
    ),
    Column("loss", "loss", "First and last iteration's loss.", _losses),
    Column("launches", "launches", "Launches that the numbers combine.", _launches),
    Column("revision", "revision", "The code's commit.", _text("revision"), False),
)
# Shown where a point has them.
_OPTIONAL = {
    "predicted_seconds": Column(
        "predicted s",
        "predicted s",
        "An emulated iteration by the event simulation: the point's pace, and as latency what a message took at the "
        "launch's start while every rank sent one.",
        _number("predicted_seconds", 4),
    ),
    "over_prediction_percent": Column(
        "over prediction",
        "over prediction",
        "The emulated iteration time over the predicted one: what the engine costs.",
        _percent("over_prediction_percent"),
    ),
    "optimizer_bytes": Column(
        "optimizer state",
        "optimizer",
        "Bytes of optimizer state (moments, master weights) on the fullest rank.",
        lambda row: memory(row["optimizer_bytes"]),
    ),
    "pipeline_bytes": Column(
        "pipeline bytes",
        "pipeline bytes",
        "Bytes that the busiest rank sends to other pipeline stages in an iteration.",
        lambda row: memory(row["pipeline_bytes"]),
    ),
    "skipped_steps": Column(
        "skipped steps", "skipped", "Steps skipped because fp16 gradients overflowed.", _text("skipped_steps")
    ),
    "checkpoint_bytes": Column(
        "checkpoint",
        "checkpoint",
        "Bytes of a checkpoint, all ranks together.",
        lambda row: memory(row["checkpoint_bytes"]),
    ),
    "checkpoint_save_bytes_per_second": Column(
        "save",
        "save/s",
        "Checkpoint bytes written per second.",
        lambda row: _per_second(row["checkpoint_save_bytes_per_second"]),
    ),
    "checkpoint_load_bytes_per_second": Column(
        "load",
        "load/s",
        "Checkpoint bytes read per second.",
        lambda row: _per_second(row["checkpoint_load_bytes_per_second"]),
    ),
    "evaluation_loss": Column(
        "evaluation loss",
        "evaluation",
        "Loss on held-out tokens after the last iteration.",
        _number("evaluation_loss", 5),
    ),
}


def _per_second(value: float | None) -> str:
    return ABSENT if absent(value) else f"{memory(value)}/s"


def result_columns(table: pd.DataFrame) -> list[Column]:
    """The columns of the main table: the points, what differs between them, and what they achieved."""
    return [*_HEAD, *_varying(table), *_source(table), *_RESULTS]


def detail_columns(table: pd.DataFrame) -> list[Column]:
    """The columns of the second table: the points, and what else is known of them."""
    optional = [
        column
        for key, column in _OPTIONAL.items()
        if key in table and any(not absent(value) and value != 0 for value in table[key])
    ]
    return [*_HEAD, *_source(table), *_DETAILS[:-2], *optional, *_DETAILS[-2:]]


def cells(table: pd.DataFrame, columns: Sequence[Column]) -> list[list[str]]:
    """The table's rows as text."""
    return [[column.show(row) for column in columns] for row in rows(table)]


def rows(table: pd.DataFrame) -> list[Row]:
    """The table's rows as dictionaries with string keys."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def text_table(table: pd.DataFrame) -> str:
    """The summary for a terminal: columns as wide as they need to be, reasons of failures below.

    The source column is left out where everything was measured.
    """
    if table.empty:
        return "no records"
    columns = result_columns(table)
    body = cells(table, columns)
    lines = [[column.short for column in columns], *body]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    out = []
    for number, line in enumerate(lines):
        padded = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        out.append("  ".join(padded).rstrip())
        if number == 0:
            out.append("  ".join("-" * width for width in widths))
    return "\n".join([*out, *(note.replace("\n", "\n    ") for note in footnotes(table))])


def footnotes(table: pd.DataFrame) -> list[str]:
    """Why points lack numbers and what is odd about them, one line for each with the points it holds for."""
    notes: dict[str, list[str]] = {}

    def note(text: str, row: Row) -> None:
        notes.setdefault(text, []).append(row["point_id"])

    for row in rows(table):
        if row["status"] != "ok":
            note(f"{row['status']}: {ABSENT if absent(row['reason']) else row['reason']}", row)
        elif row["oversubscribed"]:
            note(OVERSUBSCRIBED, row)
        elif not absent(row["note"]) and not row["times_are_given"]:  # the sources' own line says it of all
            note(row["note"], row)
    for row in rows(table):
        if row["status"] == "ok" and not absent(row["remark"]):
            note(row["remark"], row)
        if row["status"] == "ok" and row["pipeline"] > 1 and not absent(row["ideal_note"]):
            note(row["ideal_note"], row)
        if any(not absent(row[key]) and row[key] > NOISY for key in ("spread_percent", "launch_spread_percent")):
            note(NOT_QUIET, row)
    ids = [f"{', '.join(points)}: {text}" for text, points in notes.items()]
    return [*ids, *_given_times(table), *_ideals(table), *_peaks_apart(table)]


def _given_times(table: pd.DataFrame) -> list[str]:
    """What the rates of sources are in which nothing was computed."""
    paced = set(table["source"][table["times_are_given"]])
    return [f"{source}: {GIVEN_TIMES[source]}" for source in PACED_SOURCES if source in paced]


def _ideals(table: pd.DataFrame) -> list[str]:
    """Which ideal bubbles are a formula and which are simulated, where some are simulated."""
    by_basis: dict[str, dict[str, None]] = {}
    for row in rows(table):
        if row["pipeline"] > 1 and not absent(row["bubble_ideal_basis"]):
            by_basis.setdefault(row["bubble_ideal_basis"], {})[row["schedule_label"]] = None
    if by_basis.keys() <= {FORMULA}:
        return []
    return ["ideal bubble: " + "; ".join(f"{basis} for {', '.join(labels)}" for basis, labels in by_basis.items())]


def _peaks_apart(table: pd.DataFrame) -> list[str]:
    """A note for each precision whose points are held against peaks that differ."""
    notes = []
    for precision, peaks in table.groupby("precision")["peak_tflops_per_rank"]:
        low, high = peaks.min(), peaks.max()
        if high > low * (1 + NOISY / 100):
            notes.append(
                f"{precision}: the points' peaks differ by more than {NOISY:g}% (from {significant(low, 4)} to "
                f"{significant(high, 4)} TFLOP/s per rank), so percentages of peak of different rows compare peaks "
                "as much as speed"
            )
    return notes


OVERSUBSCRIBED = (
    "oversubscribed: ranks share cores or devices and wait for each other; no bubble or percentage is claimed"
)


NOISY = 10.0  # percent
NOT_QUIET = (
    f"the machine was not quiet: iteration times, or the launches' medians, spread by more than {NOISY:g}%, so "
    "small differences between these points and others mean nothing"
)


def _varying(table: pd.DataFrame) -> list[Column]:
    names = [name for name in table.columns if name.startswith(VARYING_PREFIX)]
    headings = [(name, name.removeprefix(VARYING_PREFIX)) for name in names]
    return [
        Column(heading, heading, "Differs between the points.", _text(name), _is_number(table[name]))
        for name, heading in headings
    ]


def _is_number(column: "pd.Series[Any]") -> bool:
    return all(str(value).replace(".", "", 1).isdigit() for value in column)


def _source(table: pd.DataFrame) -> list[Column]:
    return [_SOURCE] if set(table["source"]) != {"measured"} else []
