"""Published or measured rows as points on a hardware, as far as the model goes."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from suite.experiment.cluster import read_cluster
from suite.experiment.hardware import Hardware, device_named, software_named
from suite.experiment.point import Point, Schedule
from suite.experiment.source import read_yaml
from suite.experiment.validity import violations
from suite.records.published import SCHEDULES, PublishedRow
from suite.resources import resource_dir
from suite.simulate.operators import Operators
from suite.simulate.stages import stages

_BASE = "selene"  # links and software of rows that nothing more is known of
_CAPS = {"ZB-1p": 1, "ZB-2p": 2}  # automatic schedules, and their microbatches in flight for each stage
_SHARDING = {1: "zero1", 3: "zero3"}
_RECOMPUTE = ("none", "selective", "full")
_NEEDED = ("layers", "hidden", "heads", "seq", "tp", "pp", "dp", "global_batch", "microbatch", "gpu", "recompute")
_ADAPTERS = re.compile(r"(?P<count>\d+)x(?P<rate>\d+)Gb")
_NODE_RATE = re.compile(r"(?P<rate>[\d.]+)(?P<unit>[GT])b/s(?P<device> per GPU)?")


class Assumption(BaseModel):
    """What is taken for granted of a source where its rows say nothing, and the software that it ran."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    table: str | None = None
    zero_stage: int | None = None
    software: str | None = None
    schedule: str | None = None  # as sources call it
    skip: str | None = None
    vocab: int | None = None
    microbatch: int | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    seq_parallel: bool | None = None
    precision: Literal["fp16", "bf16"] | None = None
    reduction: Literal["overlapped", "after"] | None = None
    network: Annotated[float, Field(gt=0)] | None = None

    def holds(self, row: PublishedRow) -> bool:
        """Whether it is about the row."""
        return (
            row.source.startswith(self.source)
            and self.table in (None, row.table)
            and self.zero_stage in (None, row.zero_stage)
        )


@dataclass(frozen=True)
class Unsupported:
    """Why a row is outside the model."""

    reason: str


@dataclass(frozen=True)
class Placed:
    """A row's configuration: a point, and the hardware that it ran on."""

    point: Point
    hardware: Hardware


@cache
def assumptions() -> tuple[Assumption, ...]:
    """Those of `results/published/assumptions.yaml`."""
    found = read_yaml(resource_dir("published") / "assumptions.yaml").plain()
    return tuple(TypeAdapter(list[Assumption]).validate_python(found))


def placed(row: PublishedRow) -> Placed | Unsupported:
    """The row as a point on a hardware, or why the model does not go so far."""
    assumed = next((one for one in assumptions() if one.holds(row)), Assumption(source=""))
    if assumed.skip:
        return Unsupported(assumed.skip)
    said = {name: _first(getattr(row, name), getattr(assumed, name, None)) for name in _NEEDED}
    if said["global_batch"] is None and row.pp == 1 and said["microbatch"] is not None:
        said["global_batch"] = said["microbatch"] * (row.dp or 1)
    missing = [name for name, value in said.items() if value is None]
    if missing:
        return Unsupported(f"the row does not say {', '.join(missing)}")
    if said["recompute"] not in _RECOMPUTE:
        return Unsupported(f"recomputation '{said['recompute']}' is none of {', '.join(_RECOMPUTE)}")
    precision = _first((row.precision or "").removeprefix("amp_").split("/")[0] or None, assumed.precision, "fp16")
    if precision not in ("fp16", "bf16", "fp32"):
        return Unsupported(f"precision '{precision}' is none of fp16, bf16, fp32")
    reduction = _first(row.reduction, assumed.reduction, "after")
    schedule = _schedule(row, assumed)
    if isinstance(schedule, Unsupported):
        return schedule
    try:
        hardware = _hardware(row, assumed)
        point = Point.model_validate(
            {
                "model": {
                    "layers": row.layers,
                    "hidden_size": row.hidden,
                    "heads": row.heads,
                    "vocab_size": _first(row.vocab, assumed.vocab, 51200),
                    "seq_length": row.seq,
                },
                "parallel": {
                    "tensor": row.tp,
                    "pipeline": row.pp,
                    "data": row.dp,
                    "sequence": bool(_first(row.seq_parallel, assumed.seq_parallel)),
                    "scatter_gather": bool(_first(row.scatter_gather, (row.pp or 1) > 1)) and (row.tp or 1) > 1,
                    "sharding": _SHARDING.get(row.zero_stage or 0, "none"),
                    "overlap_reduction": row.zero_stage == 3 or reduction == "overlapped",
                },
                "schedule": schedule,
                "training": {
                    "global_batch": said["global_batch"],
                    "microbatch": said["microbatch"],
                    "precision": precision,
                    "recompute": said["recompute"],
                },
                "kernels": "reference" if row.fused is False else "auto",
            }
        )
    except (ValidationError, ValueError) as error:
        return Unsupported(str(error).splitlines()[0])
    if reasons := _reasons(point):
        return Unsupported("; ".join(reasons))
    if point.parallel.pipeline > 1:
        point = point.model_copy(update={"schedule": _balanced(point)})
    if point.schedule.name == "list":
        point = point.model_copy(update={"schedule": _made_for(point, hardware)})
    return Placed(point, hardware)


def _reasons(point: Point) -> list[str]:
    """The rules that the configuration breaks; two layers that its balanced ends lack count as there."""
    if _balanced(point) is not point.schedule:
        model = point.model.model_copy(update={"layers": point.model.layers + 2})
        point = point.model_copy(update={"model": model})
    return violations(point, read_cluster(resource_dir("clusters") / f"{_BASE}.yaml"), "simulated")


def _first(*values: Any) -> Any:
    """The first that is known."""
    return next((value for value in values if value is not None), None)


def _schedule(row: PublishedRow, assumed: Assumption) -> dict[str, object] | Unsupported:
    """The schedule's options."""
    stages, chunks = row.pp or 1, row.vpp or 1
    if stages == 1:
        return {"name": "1f1b"}
    said = row.schedule or assumed.schedule
    name = "list" if said in _CAPS else SCHEDULES.get(said or "")
    if name is None:
        return Unsupported(f"schedule '{said}' has no name here" if said else "the row does not say schedule")
    options: dict[str, object] = {"name": name, "chunks": chunks}
    if said in _CAPS:
        options["cap"] = _CAPS[said] * stages
    return options


def _balanced(point: Point) -> Schedule:
    """The schedule with a layer less on its first and last stage, where the others then divide evenly.

    That may leave them none, which no point of an experiment may have and only simulation can do.
    """
    each, rest = divmod(point.model.layers + 2, point.virtual_stages)
    if rest or not point.model.layers % point.virtual_stages:
        return point.schedule
    ends = (0, point.virtual_stages - 1)
    split = tuple(each - (stage in ends) for stage in range(point.virtual_stages))
    return point.schedule.model_copy(update={"split": split})


def _made_for(point: Point, hardware: Hardware) -> Schedule:
    """The list scheduler for what the point's middle stage takes, and its slowest message.

    Of the activations of a layer, s b h (34 + 5 a s / h) bytes, W needs 32 s b h (Qi et al. 2023, table 1).
    """
    every = stages(Operators(point, hardware), range(point.parallel.pipeline))
    middle = every[len(every) // 2].passes
    model = point.model
    return point.schedule.model_copy(
        update={
            "costs": (middle.forward.seconds, middle.input_gradient.seconds, middle.weight_gradient.seconds),
            "latency": max(max(stage.send_activation, stage.send_gradient) for stage in every),
            "kept": 32 / (34 + 5 * model.heads * model.seq_length / model.hidden_size),
        }
    )


def _hardware(row: PublishedRow, assumed: Assumption) -> Hardware:
    base = read_cluster(resource_dir("clusters") / f"{_BASE}.yaml").hardware
    if base is None:
        raise ValueError(f"the profile {_BASE} has no hardware")
    device = device_named((row.gpu or "").lower())
    software = software_named(assumed.software) if assumed.software else base.software
    rate = assumed.network or network_rate(row.interconnect or "", base.node_devices) or base.network.bandwidth
    network = base.network.model_copy(update={"bandwidth": rate})
    return base.model_copy(update={"device": device, "software": software, "network": network})


def network_rate(interconnect: str, node_devices: int) -> float | None:
    """Bytes/s of a device's share of its node's adapters, from words such as "8x200Gb HDR IB/node"."""
    if adapters := _ADAPTERS.search(interconnect):
        return int(adapters["count"]) * int(adapters["rate"]) * 1e9 / 8 / node_devices
    if node := _NODE_RATE.search(interconnect):
        bits = float(node["rate"]) * (1e12 if node["unit"] == "T" else 1e9)
        return bits / 8 / (1 if node["device"] else node_devices)
    return None
