"""What a plan says of each point before anything runs: sizes that follow from the configuration alone, and, where the
cluster's hardware is known, whether the point fits and what it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from suite.experiment.cluster import Cluster
from suite.experiment.expansion import Planned
from suite.experiment.hardware import Hardware
from suite.experiment.point import Point
from suite.measure.flops import TRAINING_TOKENS, model_flops, parameters
from suite.model.sizes import state_bytes
from suite.model.split import layer_counts, layer_split
from suite.pipeline.program import ScheduleError

if TYPE_CHECKING:  # what predicts is imported where something is predicted, so that other plans start quickly
    from suite.simulate.memory import Footprint


@dataclass(frozen=True)
class Row:
    """One point of a plan.

    Sizes are None as far as they do not follow for a point that cannot run, predictions where no hardware is known.
    """

    planned: Planned
    ranks: int | None = None
    microbatches: int | None = None
    layers_per_stage: tuple[float, ...] | None = None
    parameters: int | None = None
    model_flops: int | None = None  # per iteration
    state_bytes: int | None = None  # values, gradients and optimizer state of the fullest rank
    memory: "Footprint | None" = None
    iteration_seconds: float | None = None
    unpredicted: str | None = None  # why there is no prediction although the hardware is known

    @property
    def gpu_hours(self) -> float | None:
        """Hours, summed over the devices, to train on as many tokens as the paper's example, 300e9."""
        point = self.planned.point
        if self.iteration_seconds is None or point is None:
            return None
        iterations = TRAINING_TOKENS / (point.training.global_batch * point.model.seq_length)
        return iterations * self.iteration_seconds * point.parallel.ranks / 3600

    def as_json(self) -> dict[str, Any]:
        """The row for `--json`."""
        return {
            "point_id": self.planned.point_id,
            "label": self.planned.label,
            "valid": self.planned.valid,
            "reasons": self.planned.reasons,
            "ranks": self.ranks,
            "microbatches": self.microbatches,
            "layers_per_stage": self.layers_per_stage,
            "parameters": self.parameters,
            "model_flops_per_iteration": self.model_flops,
            "state_bytes_per_rank": self.state_bytes,
            "memory": None if self.memory is None else self.memory.as_json(),
            "iteration_seconds": self.iteration_seconds,
            "gpu_hours_for_300e9_tokens": self.gpu_hours,
            "unpredicted": self.unpredicted,
            "point": self.planned.configuration,
        }


def row(planned: Planned, cluster: Callable[[str], Cluster]) -> Row:
    """What is known of a point before it runs; `cluster` is the profile by name."""
    point = planned.point
    if point is None:
        return Row(planned)
    divides = point.training.global_batch % (point.parallel.data * point.training.microbatch) == 0
    sizes = Row(
        planned,
        ranks=point.parallel.ranks,
        microbatches=point.microbatches if divides else None,
        parameters=parameters(point.model),
        model_flops=model_flops(point.model, point.training.global_batch),
    )
    if not planned.valid:
        return sizes
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    whole = replace(sizes, layers_per_stage=tuple(layer_counts(split)), state_bytes=state_bytes(point))
    hardware = cluster(point.cluster).hardware_for(point)
    return whole if hardware is None else _predicted(whole, point, hardware)


def _predicted(row: Row, point: Point, hardware: Hardware) -> Row:
    from suite.simulate.prediction import NotPredictedError, predicted

    try:
        found = predicted(point, hardware)
    except (NotPredictedError, ScheduleError) as error:
        return replace(row, unpredicted=str(error))
    return replace(row, memory=found.memory, iteration_seconds=found.iteration.seconds)


def reasons_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """Every reason why points are invalid or not predicted, by which of the two, with the ids that it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in rows:
        reasons = [("invalid", reason) for reason in one.planned.reasons]
        if one.unpredicted is not None:
            reasons.append(("not predicted", one.unpredicted))
        for reason in reasons:
            found.setdefault(reason, []).append(one.planned.point_id)
    return found
