"""What a plan says of each point before anything runs: sizes that follow from the configuration alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from suite.experiment.expansion import Planned
from suite.measure.flops import model_flops, parameters
from suite.model.sizes import state_bytes
from suite.model.split import layer_split


@dataclass(frozen=True)
class Row:
    """One point of a plan. Sizes are None as far as they do not follow for a point that cannot run."""

    planned: Planned
    ranks: int | None = None
    microbatches: int | None = None
    layers_per_stage: tuple[int, ...] | None = None
    parameters: int | None = None
    model_flops: int | None = None  # per iteration
    state_bytes: int | None = None  # values, gradients and optimizer state of the fullest rank

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
            "point": self.planned.configuration,
        }


def row(planned: Planned) -> Row:
    """What is known of a point before it runs."""
    point = planned.point
    if point is None:
        return Row(planned)
    whole = point.training.global_batch % (point.parallel.data * point.training.microbatch) == 0
    sizes = Row(
        planned,
        ranks=point.parallel.ranks,
        microbatches=point.microbatches if whole else None,
        parameters=parameters(point.model),
        model_flops=model_flops(point.model, point.training.global_batch),
    )
    if not planned.valid:
        return sizes
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    return replace(sizes, layers_per_stage=tuple(len(layers) for layers in split), state_bytes=state_bytes(point))


def reasons_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Every reason why points cannot run, with the ids that it holds for."""
    found: dict[str, list[str]] = {}
    for one in rows:
        for reason in one.planned.reasons:
            found.setdefault(reason, []).append(one.planned.point_id)
    return found
