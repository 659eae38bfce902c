"""The report as files: one page that needs nothing else, the same as Markdown, the data, the figures."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import suite
from suite.experiment.spec import Experiment
from suite.measure.flops import FLOPS_VERSION
from suite.records.store import Problem, StoredRecord
from suite.report.accuracy import accuracy
from suite.report.figures import bubble, losses, series_colours, throughput
from suite.report.history import history
from suite.report.numbers import significant
from suite.report.paper.section import breakdown_sections, paper_sections
from suite.report.summary import (
    TERA,
    Launch,
    PointRow,
    configured,
    device_of,
    launch_table,
    launches_of,
    rows_of,
    summary_of,
    varying,
)
from suite.report.tables import Column, cells, detail_columns, footnotes, result_columns
from suite.report.templates import templates
from suite.report.traces import crowding, timelines
from suite.report.tradeoff import tradeoff

_FIGURE = re.compile(
    r"(accuracy|history|throughput|bubble|bubble-memory|loss(-\d+)?|timeline-\d+|paper|breakdown-[\w.-]+)\.(svg|png)"
)


@dataclass(frozen=True)
class Report:
    """What was written, the summary it shows (a row per point), and the files that it leaves out."""

    paths: tuple[Path, ...]
    table: pd.DataFrame
    problems: tuple[Problem, ...]

    @property
    def measured(self) -> bool:
        """Whether any point has a throughput."""
        return not self.table.empty and bool(self.table["tokens_per_second"].notna().any())


@dataclass(frozen=True)
class _Table:
    columns: Sequence[Column]
    body: Sequence[Sequence[str]]
    crowded: Sequence[bool]
    failed: Sequence[bool]


def write_report(
    title: str,
    records: Sequence[StoredRecord],
    problems: Sequence[Problem],
    out: Path,
    schedules: Sequence[str] = (),
    experiment: Experiment | None = None,
    chosen: Container[str] | None = None,
) -> Report:
    """Writes `index.html`, `report.md`, `data.csv` and `figures/` into `out`, made if it is not there.

    The same records give the same bytes. `schedules` are the labels of the experiment's schedules in their order: each
    keeps its colour whichever of them were run. The figure that the `experiment` reproduces comes first, with the
    points `chosen` or all. Figures of an earlier report are removed; other files stay.

    Raises:
        BadInput: the experiment's `paper.plot` cannot be read; nothing is written.
        ImpossibleEfficiencyError: a record claims more than 100 % of peak; nothing is written.
        OSError: the folder cannot be written.
    """
    launches, unreadable = launches_of(records)
    point_rows = rows_of(launches)
    table = summary_of(point_rows)
    comparison, sections = paper_sections(experiment, point_rows, chosen) if experiment else (None, [])
    if comparison is None and point_rows:
        sections = breakdown_sections(zip(table["label"], point_rows, strict=True))
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.iterdir():
        if _FIGURE.fullmatch(old.name):
            old.unlink()
    drawn = []
    if point_rows:
        colours = series_colours(table, schedules)
        drawn = [
            *accuracy(point_rows),
            *(throughput(table, colours), bubble(table, colours), *tradeoff(table)),
            *(*losses(point_rows, table), *timelines(point_rows), *history([launch.record for launch in launches])),
        ]
    skipped = sorted([*problems, *unreadable])
    page = {
        "title": title,
        "facts": _facts(launches),
        "common": _common(point_rows),
        "sections": [(section, section.figure.write(figures)) for section in sections],
        "results": _table(table, result_columns),
        "details": _table(table, detail_columns),
        "notes": footnotes(table) if point_rows else [],
        "problems": skipped,
        "figures": [(figure, figure.write(figures)) for figure in drawn],
        "flops_version": FLOPS_VERSION,
        "suite_version": suite.__version__,
    }
    paths = [out / "index.html", out / "report.md", out / "data.csv"]
    paths[0].write_text(templates().get_template("report.html.jinja").render(page), encoding="utf-8")
    paths[1].write_text(templates().get_template("report.md.jinja").render(page), encoding="utf-8")
    launch_table(point_rows).to_csv(paths[2], index=False, lineterminator="\n")
    every = [*(section.figure for section in sections), *drawn]
    images = [figures / f"{figure.name}.{kind}" for figure in every for kind in ("svg", "png")]
    return Report((*paths, *images), table, tuple(skipped))


def _table(table: pd.DataFrame, columns_of: Callable[[pd.DataFrame], list[Column]]) -> _Table:
    if table.empty:
        return _Table([], [], [], [])
    columns = columns_of(table)
    return _Table(
        columns,
        cells(table, columns),
        list(table["oversubscribed"]),
        [status != "ok" for status in table["status"]],
    )


def _facts(launches: Sequence[Launch]) -> list[tuple[str, str]]:
    """The header: what ran, where, when, by which code, and what percentages divide by."""
    if not launches:
        return [("Launches", "none: there is no record to report")]
    records = [launch.record for launch in launches]
    counts = [
        f"{sum(record.source == source for record in records)} {source}"
        for source in sorted({record.source for record in records})
    ]
    bad = sum(record.status != "ok" for record in records)
    facts = [
        ("Launches", ", ".join(counts) + (f"; {bad} not ok" if bad else "")),
        ("Host", _listed(record.environment.get("host") for record in records)),
        ("Device", _listed(map(device_of, records))),
        ("Dates", _dates(records)),
        ("Code revision", _listed(record.revision for record in records)),
        ("Peak", "; ".join(_peaks(launches))),
    ]
    crowded = [crowding(launch) for launch in launches if launch.record.oversubscribed]
    if crowded:
        facts.append(("Oversubscribed", f"{_listed(crowded)}: no bubble and no percentage is claimed"))
    return facts


def _peaks(launches: Sequence[Launch]) -> list[str]:
    """Every peak that percentages divide by, in words, and every reason for having none."""
    peaks: dict[tuple[str, str], list[float]] = defaultdict(list)
    reasons = set()
    for launch in launches:
        environment, precision = launch.record.environment, launch.point.training.precision
        if launch.metrics.peak_flops_per_rank is not None:
            source = environment.get("peak_source") or "source not recorded"
            peaks[precision, source].append(launch.metrics.peak_flops_per_rank / TERA)
        elif launch.metrics.iteration_seconds is not None and not launch.record.oversubscribed:
            reasons.add(f"none for {precision}: {environment.get('peak_reason') or 'not recorded'}")
    texts = []
    for (kind, source), values in sorted(peaks.items()):
        low, high = significant(min(values), 4), significant(max(values), 4)
        value = low if low == high else f"{low} to {high}"
        texts.append(f"{value} TFLOP/s per rank, {kind}, dense ({source})")
    return [*texts, *sorted(reasons)] or ["none: no percentage of peak is claimed"]


def _dates(records: Sequence[StoredRecord]) -> str:
    days = sorted({_day(text) for record in records for text in (record.started, record.finished)})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _day(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment.astimezone(UTC) if moment.tzinfo else moment).date().isoformat()


def _listed(values: Iterable[Any], most: int = 6) -> str:
    """The distinct values, sorted; the first few of many."""
    distinct = sorted({str(value) for value in values if value is not None})
    if not distinct:
        return "not recorded"
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def _common(point_rows: Sequence[PointRow]) -> list[tuple[str, str]]:
    """The configuration that all points share and that is worth a line."""
    if not point_rows:
        return []
    differing = varying(point_rows)
    fields = {
        "model": "model",
        "training.global_batch": "global batch B",
        "training.microbatch": "microbatch b",
        "training.precision": "precision",
        "training.recompute": "recomputation",
        "training.optimizer": "optimizer",
        "parallel.sharding": "optimizer sharding",
        "data.source": "data",
        "kernels": "kernels",
        "measure.warmup": "warm-up iterations",
        "measure.iterations": "kept iterations",
        "scale": "scale",
        "cluster": "cluster",
    }
    return [(name, configured(point_rows[0].best, path)) for path, name in fields.items() if path not in differing]
