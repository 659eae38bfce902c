"""A job's shape: the nodes and the time that a point asks for. Points of one shape go into one job array."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.experiment.submission import Slurm
from suite.pipeline.program import ScheduleError

START_MINUTES = 5  # to start the ranks, build the model and prove the schedule
MARGIN = 3.0  # of the predicted time
_DAY = 24 * 60
_NO_LIMIT = 365 * _DAY
_LADDER = (5, 10, 15, 30, 60, 120, 240, 480, 720, _DAY)  # few limits, so that points of like times share an array


@dataclass(frozen=True, order=True)
class Shape:
    """What one job asks for."""

    nodes: int
    ranks_per_node: int
    minutes: int

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        ranks = "1 rank" if self.ranks_per_node == 1 else f"{self.ranks_per_node} ranks"
        return f"{nodes} of {ranks}, {self.minutes} min"


def nodes_for(point: Point, slurm: Slurm) -> int:
    """The fewest nodes that hold the ranks in equal numbers, with tensor groups inside nodes if that is possible."""
    ranks, most = point.parallel.ranks, slurm.ranks_per_node
    counts = [nodes for nodes in range(math.ceil(ranks / most), ranks + 1) if ranks % nodes == 0]
    whole = (nodes for nodes in counts if (ranks // nodes) % point.parallel.tensor == 0)
    return next(whole, counts[0])


def shape_of(points: Sequence[Point], cluster: Cluster, slurm: Slurm, minutes: int | None) -> Shape:
    """The shape of a job that runs points of as many ranks one after another; `minutes` is a limit that was given."""
    nodes = nodes_for(points[0], slurm)
    limit = minutes or min(_limit(points, cluster, slurm), slurm.max_minutes or _NO_LIMIT)
    return Shape(nodes, points[0].parallel.ranks // nodes, limit)


def _limit(points: Sequence[Point], cluster: Cluster, slurm: Slurm) -> int:
    """From the prediction with a margin, in steps; the profile's own for a point whose time nothing predicts."""
    seconds = [_seconds(point, cluster) for point in points]
    minutes = sum(slurm.minutes if one is None else START_MINUTES + MARGIN * one / 60 for one in seconds)
    if None in seconds:
        return math.ceil(minutes)
    return next((step for step in _LADDER if step >= minutes), math.ceil(minutes / _DAY) * _DAY)


def _seconds(point: Point, cluster: Cluster) -> float | None:
    hardware = cluster.hardware_for(point)
    if hardware is None:
        return None
    from suite.simulate.prediction import NotPredictedError, predicted

    try:
        iteration = predicted(point, hardware).iteration.seconds
    except (NotPredictedError, ScheduleError):
        return None
    measure = point.measure
    return iteration * (measure.warmup + measure.iterations + measure.evaluation + measure.profile)
