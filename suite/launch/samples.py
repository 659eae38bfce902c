"""The samples of a launch: each rank's own, gathered on rank 0 as the fields of the record."""

import statistics
from typing import Any

import torch.distributed as dist

from suite.experiment.point import Point
from suite.launch.job import JobFolder
from suite.launch.trace import TraceRow, perfetto, record_trace
from suite.measure.memory import resident_bytes
from suite.parallel.topology import Group, Topology
from suite.pipeline.transport import Transport
from suite.training.step import IterationSamples


def rank_samples(
    topology: Topology, transport: Transport, samples: list[IterationSamples], peak: float | None = None, **kept: Any
) -> dict[str, Any]:
    """What this rank contributes to the record; `kept` are fields of `suite.records.schema.RankSamples`."""
    kinds = sorted({kind for sample in samples for kind in sample.busy_by_action})
    links = {
        "pipeline": transport.bytes_sent,
        "tensor": topology.tensor.traffic.bytes,
        "data": topology.data.traffic.bytes,
        "replicas": sum(group.traffic.bytes for group in {id(g): g for g in topology.copies.values()}.values()),
        "embedding": topology.embedding.traffic.bytes,
    }
    return {
        "rank": topology.rank,
        "coords": topology.coords,
        "rss_bytes": resident_bytes(),
        "busy_seconds": [sum(sample.busy_by_action.values()) for sample in samples],
        "busy_by_action": {kind: [sample.busy_by_action.get(kind, 0.0) for sample in samples] for kind in kinds},
        "bytes_by_link": {link: count // len(samples) for link, count in links.items()},
        "seconds": [sample.seconds for sample in samples],
        "reduction_wait": [sample.reduction_wait for sample in samples],
        "optimizer": [sample.optimizer for sample in samples],
        "window": [(sample.actions[0].start, sample.actions[-1].end) for sample in samples],
        "peak": peak,
        **kept,
    }


def _gather(value: Any, world: Group) -> list[Any] | None:
    """Every rank's value, on rank 0."""
    if world.size == 1:
        return [value]
    values: list[Any] | None = [None] * world.size if world.index == 0 else None
    dist.gather_object(value, values, dst=0)
    return values


def collect(
    point: Point, here: dict[str, Any], samples: list[IterationSamples], world: Group, folder: JobFolder
) -> dict[str, Any] | None:
    """The record's samples on rank 0: the slowest rank's times, every rank's own, one traced iteration.

    The traced iteration's file with every rank's actions, messages and reductions goes to the job's folder.
    """
    ranks = _gather(here, world)
    slowest = _longest(ranks, "seconds") if ranks else []
    traced = [_median_iteration(slowest, point.measure.warmup)] if ranks else [0]
    rows = None
    if point.measure.trace:
        if world.size > 1:
            dist.broadcast_object_list(traced, src=0)
        rows = _gather(TraceRow(here["rank"], here["coords"], samples[traced[0]]), world)
    if ranks is None:
        return None
    if rows:
        (folder.path / "trace.json").write_text(perfetto(rows))
    windows = [[one["window"][k] for one in ranks] for k in range(len(samples))]
    result = {
        "iterations": {
            "seconds": slowest,
            "loss": _all_or_none([sample.loss for sample in samples]),
            "grad_norm": _all_or_none([sample.grad_norm for sample in samples]),
            "warmup": point.measure.warmup,
            "forward_backward_seconds": [max(e for _, e in w) - min(s for s, _ in w) for w in windows],
        },
        "breakdown_seconds": {
            "actions": _longest(ranks, "busy_seconds"),
            "reduction_wait": _longest(ranks, "reduction_wait"),
            "optimizer": _longest(ranks, "optimizer"),
        },
        "peaks": [one["peak"] for one in ranks],
        "trace": record_trace(traced[0], rows) if rows else None,
    }
    private = ("seconds", "reduction_wait", "optimizer", "window", "peak")
    result["ranks"] = [{k: v for k, v in one.items() if k not in private} for one in ranks]
    return result


def _all_or_none(values: list[float | None]) -> list[float | None] | None:
    return values if any(value is not None for value in values) else None


def _longest(ranks: list[dict[str, Any]], name: str) -> list[float]:
    return [max(values) for values in zip(*(one[name] for one in ranks), strict=True)]


def _median_iteration(seconds: list[float], warmup: int) -> int:
    """The kept iteration whose time is the (lower) median."""
    kept = seconds[warmup:]
    return warmup + kept.index(statistics.median_low(kept))
