"""Which point a published row is of: a row and a point are the same where their configurations agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.experiment.point import Point
from suite.records.published import PublishedRow

_STAGES = {"none": 0, "zero1": 1, "zero3": 3}


def _fused(point: Point) -> bool | str:
    """Whether the element-wise operators are fused: all but the reference operators are. Some of them are no row's."""
    kernels = point.kernels
    if isinstance(kernels, dict) and "reference" in kernels.values():
        return "partly"
    return kernels != "reference"


def _reduction(point: Point) -> str:
    return "overlapped" if point.parallel.overlap_reduction else "after"


# Column of a row -> the point's value of it. A point without several ranks in a dimension has no use for what belongs
# to that dimension, and agrees with whatever the row says of it (None).
_FIELDS: dict[str, Callable[[Point], Any]] = {
    "layers": lambda point: point.model.layers,
    "hidden": lambda point: point.model.hidden_size,
    "heads": lambda point: point.model.heads,
    "seq": lambda point: point.model.seq_length,
    "n_gpus": lambda point: point.parallel.ranks,
    "tp": lambda point: point.parallel.tensor,
    "pp": lambda point: point.parallel.pipeline,
    "dp": lambda point: point.parallel.data,
    "vpp": lambda point: point.schedule.chunks,
    "microbatch": lambda point: point.training.microbatch,
    "global_batch": lambda point: point.training.global_batch,
    "schedule_name": lambda point: point.schedule.name if point.parallel.pipeline > 1 else None,
    "recompute": lambda point: point.training.recompute,
    "seq_parallel": lambda point: point.parallel.sequence if point.parallel.tensor > 1 else None,
    "zero_stage": lambda point: _STAGES[point.parallel.sharding] if point.parallel.data > 1 else None,
    "scatter_gather": lambda point: (
        point.parallel.scatter_gather if min(point.parallel.tensor, point.parallel.pipeline) > 1 else None
    ),
    "fused": _fused,
    "reduction": lambda point: _reduction(point) if point.parallel.data > 1 else None,
}


def disagreements(row: PublishedRow, point: Point) -> list[str]:
    """The columns in which the row says something else than the point; none where they are the same.

    An empty cell agrees with anything. So does `schedule_name` where the row's schedule has no name in the suite.
    """
    pairs = ((column, getattr(row, column), value_of(point)) for column, value_of in _FIELDS.items())
    return [column for column, said, value in pairs if said is not None and value is not None and said != value]


@dataclass(frozen=True)
class Matched:
    """Points with their rows, rows that several points agree with, and rows that none does."""

    rows: dict[str, tuple[PublishedRow, ...]]  # by point id
    ambiguous: tuple[PublishedRow, ...]
    unmatched: tuple[PublishedRow, ...]


def matched(rows: Sequence[PublishedRow], points: Sequence[Point]) -> Matched:
    """Gives every row to the one point that it agrees with."""
    distinct = {point.id: point for point in points}
    found: dict[str, tuple[PublishedRow, ...]] = {}
    ambiguous: list[PublishedRow] = []
    unmatched: list[PublishedRow] = []
    for row in rows:
        fits = [name for name, point in distinct.items() if not disagreements(row, point)]
        if len(fits) == 1:
            found[fits[0]] = (*found.get(fits[0], ()), row)
        else:
            (ambiguous if fits else unmatched).append(row)
    return Matched(found, tuple(ambiguous), tuple(unmatched))
