"""The prediction of one point's iteration on a hardware: the event simulation of its program with its stages' times."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from suite.experiment.hardware import Hardware
from suite.experiment.point import Point
from suite.experiment.point import Schedule as Options
from suite.model.sizes import rank_parameters
from suite.pipeline.collection import no_collection
from suite.pipeline.generators import generate
from suite.pipeline.graph import KINDS
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, Schedule
from suite.pipeline.timeline import Costs, Link, Network, timeline
from suite.simulate.operators import Operators
from suite.simulate.spent import NOTHING
from suite.simulate.stages import Stage, stages
from suite.simulate.update import (
    gathering_seconds,
    optimizer_seconds,
    reduction_seconds,
    tied_embedding_seconds,
)

PARTS = (
    "gemm",
    "attention",
    "elementwise",
    "launch",
    "tensor_communication",
    "pipeline_communication",
    "data_communication",
    "bubble",
    "optimizer",
)


@dataclass(frozen=True)
class Estimate:
    """One iteration, in seconds: until its last action ended, until its end, and what the busiest rank spends.

    `breakdown` has every part of PARTS; they add up to `seconds`. Its bubble is what that rank waits for others.
    """

    seconds: float
    forward_backward_seconds: float
    breakdown: dict[str, float]
    busy_seconds: tuple[float, ...]  # by pipeline rank


@cache
def program(options: Options, pipeline: int, microbatches: int) -> Schedule:
    """The point's schedule; the points of a sweep share it."""
    return generate(options, pipeline, microbatches)


def sizes_of(point: Point) -> tuple[Options, int, int]:
    """What the point's program follows from, and points with other models share."""
    return point.schedule.model_copy(update={"split": None}), point.parallel.pipeline, point.microbatches


def estimate(
    point: Point, hardware: Hardware, operators: Callable[[Point, Hardware], Operators] = Operators
) -> Estimate:
    """Predict one iteration of a valid point.

    Raises:
        ScheduleError: the schedule deadlocks.
        KeyError: the device has no peak for the point's precision.
    """
    hardware = hardware.occupied(point.parallel.ranks)
    with no_collection():
        return _estimate(point, hardware, program(*sizes_of(point)), operators(point, hardware))


def _estimate(point: Point, hardware: Hardware, schedule: Schedule, operators: Operators) -> Estimate:
    every = stages(operators, schedule.placement[0])
    parameters = rank_parameters(point)
    gathered = _gathered(every[0], point, hardware, max(parameters)) if point.parallel.sharding == "zero3" else {}
    blocking = hardware.software.blocking_messages
    table = {
        (kind, number): stage.spent(kind).seconds + gathered.get(kind, 0.0) + (stage.sends(kind) if blocking else 0.0)
        for kind in KINDS
        for number, stage in enumerate(every)
    }
    graph = schedule.graph
    durations = graph.of_actions(table)
    ends = _ends(schedule, table, every, blocking)
    last = [float(of_rank[-1]) for of_rank in np.split(ends, graph.first[1:-1])]
    busy = [float(of_rank.sum()) for of_rank in np.split(durations, graph.first[1:-1])]
    rank = int(np.argmax(busy))
    counts = _counts(schedule, rank)
    spent = sum((every[stage].spent(kind) * count for (kind, stage), count in counts.items()), NOTHING)
    sends = sum(every[stage].sends(kind) * count for (kind, stage), count in counts.items()) if blocking else 0.0
    shards = sum(gathered.get(kind, 0.0) * count for (kind, _), count in counts.items())

    slowdown = hardware.software.slowdown
    step = slowdown * optimizer_seconds(point, hardware, max(parameters))
    tied = slowdown * tied_embedding_seconds(point, hardware)
    exposed = [_exposed(point, hardware, schedule, every, r, n) for r, n in enumerate(parameters)]
    reduced = max(end + seconds for end, seconds in zip(last, exposed, strict=True))
    total = reduced + tied + step
    own = spent.by_name() | {
        "pipeline_communication": sends,
        "data_communication": shards + exposed[rank] + tied,
        "optimizer": step,
    }
    return Estimate(total, max(last), own | {"bubble": max(0.0, total - sum(own.values()))}, tuple(busy))


def _ends(schedule: Schedule, table: dict[tuple[str, int], float], every: list[Stage], blocking: bool) -> np.ndarray:
    """When every action ends. Messages that ranks do not wait for travel beside computation, one a link at a time."""
    if blocking or len(schedule.programs) == 1:
        return schedule.graph.times(schedule.graph.of_actions(table))[1]
    hosts = schedule.placement[0]
    links = {}
    for number, stage in enumerate(every):
        for other, seconds in ((number + 1, stage.send_activation), (number - 1, stage.send_gradient)):
            if seconds:
                links[hosts[number], hosts[other]] = Link(bandwidth=1 / seconds)
    times = timeline(schedule, Costs(stages=table), Network(1.0, links=links))
    return np.array([span.end for row in times.ranks for span in row])


def _counts(schedule: Schedule, rank: int) -> dict[tuple[str, int], int]:
    """How many actions of every kind and stage a rank has."""
    graph = schedule.graph
    mine = slice(graph.first[rank], graph.first[rank + 1])
    pairs, counts = np.unique(np.stack([graph.kinds[mine], graph.stages[mine]]), axis=1, return_counts=True)
    return {(KINDS[kind], int(stage)): int(count) for (kind, stage), count in zip(pairs.T, counts, strict=True)}


def _exposed(
    point: Point, hardware: Hardware, schedule: Schedule, every: list[Stage], rank: int, parameters: float
) -> float:
    """Seconds of a rank's gradient reduction that its last backward pass does not hide."""
    if point.parallel.sharding == "zero3":
        return 0.0
    seconds = hardware.software.slowdown * reduction_seconds(point, hardware, parameters)
    if not point.parallel.overlap_reduction:
        return seconds
    mine = (stage for stage, host in zip(every, schedule.placement[0], strict=True) if host == rank)
    behind = sum(stage.spent(BACKWARD).seconds for stage in mine)
    return seconds - hardware.software.overlap_share * min(seconds, behind)


def _gathered(stage: Stage, point: Point, hardware: Hardware, parameters: float) -> dict[str, float]:
    """ZeRO-3: what its traffic adds to a forward and a backward pass, which hide it as far as they last."""
    forward, backward = gathering_seconds(point, hardware, parameters / point.schedule.chunks)
    slowdown = hardware.software.slowdown
    ahead = max(0.0, slowdown * forward - stage.spent(FORWARD).seconds)
    behind = max(0.0, slowdown * backward - stage.spent(BACKWARD).seconds)
    return {FORWARD: ahead, BACKWARD: behind, INPUT_GRADIENT: behind}
