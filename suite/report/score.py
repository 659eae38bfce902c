"""The simulator against measured rows: the error of every row and of every source, and whether it ranks them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd

from suite.pipeline.program import ScheduleError
from suite.records.published import PublishedRow
from suite.report.grid import Grid, Heading
from suite.report.paper.quantities import QUANTITIES, Timed
from suite.simulate.iteration import estimate
from suite.simulate.rows import Placed, Unsupported, placed

# Of the metrics of one configuration, the one that says its iteration time most directly is scored.
SCORED = (
    "iteration_time",
    "sequences_per_s",
    "samples_per_gpu_per_s",
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "tflops_per_gpu",
    "mfu",
    "hfu",
)
_LEAST_RANKED = 3  # rows of a model that a rank correlation is taken over


@dataclass(frozen=True)
class ScoredRow:
    """A row with what the simulator predicts of it, in the row's unit."""

    row: PublishedRow
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """By how much the prediction is faster than what was measured, as a share of it."""
        ratio = self.predicted / self.measured
        return 1 / ratio - 1 if self.row.metric == "iteration_time" else ratio - 1


@dataclass(frozen=True)
class SkippedRow:
    """A row outside the model, and why."""

    row: PublishedRow
    reason: str


@dataclass(frozen=True)
class SourceScore:
    """The errors of one source's rows, as shares; `rank_correlation` is Spearman's, the mean over its model sizes."""

    rows: int
    mape: float
    max: float
    bias: float
    rank_correlation: float | None
    rank_correlations: dict[str, float]


@dataclass(frozen=True)
class Score:
    """All rows, by what became of them."""

    rows: tuple[ScoredRow, ...]
    skipped: tuple[SkippedRow, ...]

    @property
    def sources(self) -> dict[str, SourceScore]:
        """By source, in the order of the rows."""
        found: dict[str, list[ScoredRow]] = defaultdict(list)
        for one in self.rows:
            found[one.row.source].append(one)
        return {source: _of_source(rows) for source, rows in found.items()}

    def as_json(self) -> dict[str, Any]:
        """For `--json`; errors in percent, times and rates in the rows' units."""
        return {
            "sources": {
                name: {
                    "rows": one.rows,
                    "mape": 100 * one.mape,
                    "max": 100 * one.max,
                    "bias": 100 * one.bias,
                    "rank_correlation": one.rank_correlation,
                    "rank_correlations": one.rank_correlations,
                }
                for name, one in self.sources.items()
            },
            "rows": [
                {
                    **_named(one.row),
                    "metric": one.row.metric,
                    "unit": one.row.unit,
                    "measured": one.measured,
                    "predicted": one.predicted,
                    "error_percent": 100 * one.error,
                }
                for one in self.rows
            ],
            "skipped": [{**_named(one.row), "reason": one.reason} for one in self.skipped],
        }


def _named(row: PublishedRow) -> dict[str, Any]:
    return {"source": row.source, "table": row.table, "config_id": row.config_id, "line": row.line}


@dataclass(frozen=True)
class Case:
    """A row that the model covers, and its configuration."""

    row: PublishedRow
    placed: Placed


def cases(rows: Iterable[PublishedRow]) -> tuple[list[Case], list[SkippedRow]]:
    """One row of every configuration that the model covers, and the others."""
    found: list[Case] = []
    skipped: list[SkippedRow] = []
    for row in _one_each(rows):
        where = placed(row) if row.value > 0 else Unsupported(f"{row.metric} is 0, which nothing measured can be")
        if isinstance(where, Unsupported):
            skipped.append(SkippedRow(row, where.reason))
        else:
            found.append(Case(row, where))
    return found, skipped


def error_of(case: Case, seconds: float) -> float:
    """By how much a predicted iteration time is faster than what was measured, as a share of it."""
    return ScoredRow(case.row, _in_its_unit(case, seconds), _measured(case.row)).error


def score(rows: Iterable[PublishedRow]) -> Score:
    """Predict one row of every configuration."""
    found, skipped = cases(rows)
    scored: list[ScoredRow] = []
    for case in found:
        try:
            seconds = estimate(case.placed.point, case.placed.hardware).seconds
        except (ScheduleError, KeyError, ValueError) as error:
            skipped.append(SkippedRow(case.row, str(error)))
            continue
        scored.append(ScoredRow(case.row, _in_its_unit(case, seconds), _measured(case.row)))
    return Score(tuple(scored), tuple(skipped))


def _in_its_unit(case: Case, seconds: float) -> float:
    """An iteration time in the row's metric."""
    point, device = case.placed.point, case.placed.hardware.device
    found = QUANTITIES[case.row.metric].of(Timed(point, seconds, peak=device.peak[point.training.precision]))
    assert found is not None  # every metric of SCORED follows from an iteration time and a peak
    return found


def _measured(row: PublishedRow) -> float:
    return row.iteration_seconds or row.value


def _one_each(rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """Of every configuration the row whose metric comes first in SCORED; rows without an id stand for themselves."""
    best: dict[Any, PublishedRow] = {}
    for row in rows:
        if row.metric not in SCORED:
            continue
        key = (row.source, row.table, row.config_id) if row.config_id else (row.source, row.line)
        if key not in best or SCORED.index(row.metric) < SCORED.index(best[key].metric):
            best[key] = row
    return list(best.values())


def _of_source(rows: Sequence[ScoredRow]) -> SourceScore:
    sizes: dict[str, list[ScoredRow]] = defaultdict(list)
    for one in rows:
        sizes[f"{one.row.model} on {one.row.n_gpus}"].append(one)
    ranked = {size: found for size, of_size in sizes.items() if (found := _ranked(of_size)) is not None}
    errors = [one.error for one in rows]
    return SourceScore(
        rows=len(rows),
        mape=mean(map(abs, errors)),
        max=max(map(abs, errors)),
        bias=mean(errors),
        rank_correlation=mean(ranked.values()) if ranked else None,
        rank_correlations=ranked,
    )


def _ranked(rows: Sequence[ScoredRow]) -> float | None:
    """Spearman's correlation of predicted and measured; None where there is nothing to rank."""
    if len(rows) < _LEAST_RANKED:
        return None
    table = pd.DataFrame({"predicted": [one.predicted for one in rows], "measured": [one.measured for one in rows]})
    found = float(table.rank()["predicted"].corr(table.rank()["measured"]))  # of ranks: Spearman's, without scipy
    return None if math.isnan(found) else found


def sources_grid(found: Score) -> Grid:
    """The errors by source, as pages and terminals show them."""
    columns = (
        Heading("source", "The paper or project."),
        Heading("rows", "Configurations that the model covers; one row of each.", numeric=True),
        Heading("MAPE", "Mean absolute percentage error of iteration time or rate.", numeric=True),
        Heading("largest", "The largest absolute error.", numeric=True),
        Heading("bias", "Mean error; positive: predicted faster than it was.", numeric=True),
        Heading("rank correlation", "Spearman's, within a model on so many GPUs, the mean over those.", numeric=True),
    )
    body = [
        [
            name,
            str(one.rows),
            f"{100 * one.mape:.1f}%",
            f"{100 * one.max:.1f}%",
            f"{100 * one.bias:+.1f}%",
            "" if one.rank_correlation is None else f"{one.rank_correlation:.2f}",
        ]
        for name, one in found.sources.items()
    ]
    return Grid(columns, body)
