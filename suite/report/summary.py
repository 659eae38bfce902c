"""From records to the report's two tables: a row per launch and a row per point."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

import pandas as pd
from pydantic import ValidationError

from suite.experiment.point import Point
from suite.experiment.recorded import point_of, why_not_its_own, why_unreadable
from suite.records.frame import frame
from suite.records.remarks import remark
from suite.records.schema import Record
from suite.records.store import SOURCES, Problem, StoredRecord
from suite.report.ideal import times_are_given
from suite.report.labels import labels
from suite.report.metrics import Metrics, check_efficiency, days_to_train, metrics
from suite.report.storage import storage

TERA = 1e12
PETA = 1e15

# Numbers that a point need not have; they are floats, so that a column of none is no column of objects.
_MAY_MISS = (
    "iteration_seconds",
    "spread_percent",
    "launch_spread_percent",
    "tokens_per_second",
    "hardware_tflops_per_rank",
    "model_tflops_per_rank",
    "causal_model_tflops_per_rank",
    "hardware_petaflops",
    "model_petaflops",
    "peak_tflops_per_rank",
    "hfu_percent",
    "mfu_percent",
    "days_300b_tokens",
    "predicted_seconds",
    "over_prediction_percent",
    "bubble_measured_percent",
    "bubble_ideal_percent",
    "bubble_fraction_percent",
    "peak_activations",
    "memory_bytes",
    "first_loss",
    "final_loss",
    "speedup",
)

VARYING_PREFIX = "varying."  # before the heading, names a column that is there because points differ in it

# Configuration that a table shows as a column where it varies between points: path in the point, heading.
VARYING = {
    "model": "model",
    "model.dropout": "dropout",
    "training.global_batch": "B",
    "training.microbatch": "b",
    "training.precision": "precision",
    "training.recompute": "recompute",
    "training.optimizer": "optimizer",
    "training.seed": "seed",
    "training.learning_rate": "learning rate",
    "training.gradient_clip": "clip",
    "training.loss_scale": "loss scale",
    "parallel.sequence": "sequence parallel",
    "parallel.scatter_gather": "scatter/gather",
    "parallel.sharding": "sharding",
    "parallel.order": "rank order",
    "schedule.group": "group",
    "schedule.cap": "cap",
    "schedule.base": "base",
    "schedule.split": "split",
    "schedule.costs": "order for F B W",
    "schedule.latency": "order for latency",
    "schedule.kept": "order for kept",
    "pace.forward": "pace F",
    "pace.input_gradient": "pace B",
    "pace.weight_gradient": "pace W",
    "pace.latency": "latency",
    "pace.bandwidth": "bandwidth",
    "pace.overlap": "overlap",
    "data.source": "data",
    "kernels": "kernels",
    "measure.warmup": "warm-up",
    "measure.iterations": "iterations",
    "cluster": "cluster",
    "scale": "scale",
}


@dataclass(frozen=True)
class Launch:
    """A record beside its resolved configuration and its numbers."""

    record: StoredRecord
    point: Point
    metrics: Metrics

    @property
    def finished(self) -> float:
        """When it ended, in seconds since 1970; a time without a zone is UTC, an unreadable one is 0."""
        try:
            moment = datetime.fromisoformat(self.record.finished)
        except ValueError:
            return 0.0
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True)
class PointRow:
    """A point of one source: the launches that its numbers come from, and those of older revisions."""

    used: tuple[Launch, ...]
    older: tuple[Launch, ...]

    @property
    def best(self) -> Launch:
        """The launch that stands for the point in figures: the last that is ok, or the last."""
        return max(self.used, key=lambda launch: (launch.record.status == "ok", launch.finished))


def launches_of(
    records: Sequence[StoredRecord], numbers: Callable[[Record, Point], Metrics] = metrics
) -> tuple[list[Launch], list[Problem]]:
    """Resolves and computes every record; one whose configuration cannot be read, or was edited, is a problem.

    `numbers` computes what is needed of a record: all `metrics`, or what was `achieved`.

    Raises ImpossibleEfficiencyError where any record claims more than 100 % of peak.
    """
    launches: list[Launch] = []
    problems: list[Problem] = []
    for record in records:
        try:
            point = point_of(record)
        except ValidationError as error:
            problems.append(Problem(record.file, why_unreadable(error)))
            continue
        reason = why_not_its_own(record, point)
        if reason is not None:
            problems.append(Problem(record.file, reason))
            continue
        launches.append(Launch(record, point, numbers(record, point)))
    check_efficiency([(launch.record.file, launch.metrics) for launch in launches])
    return launches, problems


def rows_of(launches: Sequence[Launch]) -> list[PointRow]:
    """Groups launches into points, in the order of the report.

    Numbers of a point come from the launches of its newest revision only (the one that finished last), and for
    predictions of its newest constants: two versions are never averaged.
    """
    groups: dict[tuple[str, str, str, str], list[Launch]] = defaultdict(list)
    for launch in launches:
        record = launch.record
        groups[record.experiment, record.scale, record.source, record.point_id].append(launch)
    rows = []
    for group in groups.values():
        newest = max(group, key=lambda launch: (launch.finished, launch.record.revision))
        used = [launch for launch in group if _version(launch) == _version(newest)]
        older = [launch for launch in group if _version(launch) != _version(newest)]
        rows.append(PointRow(tuple(used), tuple(older)))
    return sorted(rows, key=lambda row: _order(row.used[0]))


def _version(launch: Launch) -> tuple[str, Any]:
    """The code, and of a prediction the constants, that a launch's numbers come from."""
    return launch.record.revision, launch.record.environment.get("hardware")


def summarise(records: Sequence[StoredRecord]) -> pd.DataFrame:
    """A row per point and source; NaN where a number is not supported.

    Times in seconds, memory in bytes, rates in the unit of the column's name. Launches of a point combine
    by the median of their medians. Raises ImpossibleEfficiencyError above 100 % of peak.
    """
    return summary_of(rows_of(launches_of(records)[0]))


def summary_of(rows: Sequence[PointRow]) -> pd.DataFrame:
    """`summarise` for rows that are already grouped."""
    table = pd.DataFrame([_summary(row) for row in rows])
    if table.empty:
        return table
    table["speedup"] = _speedups(rows, list(table["tokens_per_second"]))
    missing = [name for name in table.columns if name in _MAY_MISS]
    table[missing] = table[missing].astype(float)
    shown = varying(rows)
    for path, heading in shown.items():
        table[VARYING_PREFIX + heading] = _column(rows, path)
    told = {
        heading: list(table[VARYING_PREFIX + heading])
        for path, heading in shown.items()
        if not path.startswith("measure.")
    }
    table["label"] = labels([row.best.point for row in rows], told)
    return table


def launch_table(rows: Sequence[PointRow]) -> pd.DataFrame:
    """A row per launch at full precision: identity, configuration, numbers and whether the point uses it."""
    launches = [(launch, True) for row in rows for launch in row.used]
    launches += [(launch, False) for row in rows for launch in row.older]
    launches.sort(key=lambda pair: (*_order(pair[0]), pair[0].record.revision, pair[0].record.launch))
    if not launches:
        return pd.DataFrame()
    left = frame([launch.record for launch, _ in launches])
    right = pd.DataFrame(
        [{"used": used, "layout": launch.point.layout, **_numbers([launch])} for launch, used in launches],
        dtype=object,
    )
    return pd.concat([left, right], axis=1)


def varying(rows: Sequence[PointRow]) -> dict[str, str]:
    """Paths of the configuration (with headings) in which the rows differ, layout and schedule aside."""
    return {path: heading for path, heading in VARYING.items() if len({configured(row.best, path) for row in rows}) > 1}


def _column(rows: Sequence[PointRow], path: str) -> list[str]:
    """One field of every row; a model by its name alone where names tell all models apart."""
    values = [configured(row.best, path) for row in rows]
    names = [row.best.point.model.name for row in rows]
    if path == "model" and None not in names and len(set(names)) == len(set(values)):
        return [str(name) for name in names]
    return values


def configured(launch: Launch, path: str) -> str:
    """The value of one configuration field as text; a model without a name is described by its shape."""
    if path == "scale":
        return launch.record.scale
    if path == "model":
        return model_label(launch.point)
    value: Any = launch.point
    for part in path.split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def model_label(point: Point) -> str:
    """The model's name with its shape, so that a name alone never stands for a size."""
    model = point.model
    shape = f"l={model.layers} h={model.hidden_size} a={model.heads} s={model.seq_length} V={model.vocab_size}"
    if model.ffn_hidden_size != 4 * model.hidden_size:
        shape += f" f={model.ffn_hidden_size}"
    if not model.tied_embeddings:
        shape += " untied"
    return f"{model.name} ({shape})" if model.name else shape


def device_of(record: StoredRecord) -> str | None:
    """What computed: the accelerator by its driver's name, or the processor by its own."""
    device = record.environment.get("device")
    return record.environment.get("cpu") or device if device == "cpu" else device


def _summary(row: PointRow) -> dict[str, Any]:
    launch = row.best
    record, point = launch.record, launch.point
    timed = [one for one in row.used if one.metrics.iteration_seconds is not None]
    numbers = _numbers(timed or [launch])
    if len(timed) > 1:
        medians = [one.metrics.iteration_seconds or 0.0 for one in timed]
        numbers["launch_spread_percent"] = 100 * (max(medians) - min(medians)) / median(medians)
    return {
        "experiment": record.experiment,
        "scale": record.scale,
        "source": record.source,
        "point_id": record.point_id,
        "layout": point.layout,
        "tensor": point.parallel.tensor,
        "pipeline": point.parallel.pipeline,
        "data": point.parallel.data,
        "schedule": point.schedule.name,
        "chunks": point.schedule.chunks,
        "schedule_label": point.schedule_label,
        "model": model_label(point),
        "global_batch": point.training.global_batch,
        "microbatch": point.training.microbatch,
        "precision": point.training.precision,
        "recompute": point.training.recompute,
        "status": record.status,
        "reason": record.reason,
        "times_are_given": times_are_given(record),
        "oversubscribed": any(one.record.oversubscribed for one in row.used),
        "launches": len(timed),
        "launches_failed": sum(one.record.status != "ok" for one in row.used),
        "launches_older": len(row.older),
        "revision": record.revision,
        **numbers,
        **storage([one.record for one in row.used if one.record.status == "ok"]),
    }


def _numbers(launches: Sequence[Launch]) -> dict[str, Any]:
    """Numbers of one launch, or of several from the median of their median times; the highest memory.

    One oversubscribed launch makes all of them so: no bubble and no percentage.
    """

    def middle(name: str) -> float | None:
        values = [value for one in launches if (value := getattr(one.metrics, name)) is not None]
        return median(values) if values else None

    first = launches[0].metrics
    crowded = any(one.record.oversubscribed for one in launches)
    seconds = middle("iteration_seconds")
    peak = None if crowded else middle("peak_flops_per_rank")
    tokens = middle("tokens_per_iteration")

    def rate(flops: float | None, unit: float = 1.0) -> float | None:
        return flops / seconds / unit if seconds and flops is not None else None

    def percent(value: float | None) -> float | None:
        return None if value is None or crowded else 100 * value

    def of_peak(flops: int) -> float | None:
        return percent(flops / seconds / (first.ranks * peak)) if seconds and peak else None

    spread, ideal, predicted = middle("spread"), first.ideal_bubble, middle("predicted_seconds")
    memory = [one.metrics.memory_bytes for one in launches if one.metrics.memory_bytes is not None]
    per_second = rate(tokens)
    return {
        "ranks": first.ranks,
        "microbatches": first.microbatches,
        "iteration_seconds": seconds,
        "spread_percent": None if spread is None else 100 * spread,
        "launch_spread_percent": None,
        "predicted_seconds": predicted,
        "over_prediction_percent": 100 * (seconds / predicted - 1) if seconds and predicted else None,
        "tokens_per_second": per_second,
        "hardware_flops_per_iteration": first.hardware_flops,
        "model_flops_per_iteration": first.model_flops,
        "causal_model_flops_per_iteration": first.causal_model_flops,
        "hardware_tflops_per_rank": rate(first.hardware_flops, TERA * first.ranks),
        "model_tflops_per_rank": rate(first.model_flops, TERA * first.ranks),
        "causal_model_tflops_per_rank": rate(first.causal_model_flops, TERA * first.ranks),
        "hardware_petaflops": rate(first.hardware_flops, PETA),
        "model_petaflops": rate(first.model_flops, PETA),
        "peak_tflops_per_rank": peak / TERA if peak else None,
        "hfu_percent": of_peak(first.hardware_flops),
        "mfu_percent": of_peak(first.model_flops),
        "days_300b_tokens": days_to_train(per_second) if per_second else None,
        "bubble_measured_percent": percent(middle("measured_bubble")),
        "bubble_ideal_percent": None if ideal is None else 100 * ideal,
        "bubble_ideal_basis": first.ideal_basis,
        "bubble_fraction_percent": percent(middle("bubble_fraction")),
        "peak_activations": first.peak_activations,
        "memory_bytes": max(memory, default=None),
        "first_loss": middle("first_loss"),
        "final_loss": middle("final_loss"),
        "note": next((one.metrics.note for one in launches if one.metrics.note), None),
        "ideal_note": first.ideal_note,
        "remark": next(filter(None, (remark(one.record) for one in launches)), None),
    }


def _speedups(rows: Sequence[PointRow], rates: Sequence[float | None]) -> list[float | None]:
    """Tokens/s over those of the fastest (1,1,1) point of the same work on the same kind of machine.

    None for an oversubscribed point, which would compare cores with ranks, where times of the actions were given, which
    are those of a rank's share however small, and where there is no such point.
    """

    def work(row: PointRow) -> tuple[object, ...]:
        record, training = row.best.record, row.best.point.training
        return (
            *(record.scale, record.source, device_of(record), row.best.point.cluster),
            *(row.best.point.model.model_dump_json(exclude={"name"}), training.global_batch),
            *(training.precision, training.recompute),
        )

    def usable(row: PointRow, rate: float | None) -> bool:
        record = row.best.record
        return rate == rate and rate is not None and not record.oversubscribed and not times_are_given(record)

    single: dict[tuple[object, ...], float] = {}
    for row, rate in zip(rows, rates, strict=True):
        if row.best.point.parallel.ranks == 1 and usable(row, rate):
            single[work(row)] = max(single.get(work(row), 0.0), rate or 0.0)
    return [
        rate / single[work(row)] if rate and usable(row, rate) and work(row) in single else None
        for row, rate in zip(rows, rates, strict=True)
    ]


def _order(launch: Launch) -> tuple[object, ...]:
    record, point = launch.record, launch.point
    return (
        *(record.experiment, record.scale, SOURCES.index(record.source)),
        *(point.model.layers * point.model.hidden_size**2, model_label(point), point.training.global_batch),
        *(point.parallel.ranks, point.parallel.tensor, point.parallel.pipeline),
        *(point.schedule.name, point.schedule.chunks, point.training.microbatch, record.point_id),
    )
