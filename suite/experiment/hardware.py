"""What hardware and software a cluster profile says is there: devices, links, file system, training stack.

A profile's `hardware` names a device of `slurm/devices` and a stack of `slurm/software`, or spells them out. Constants
are from data sheets, measured, or fitted; which were fitted, on what, and what would be physically sensible, stands in
`fitted`.
"""

import hashlib
import math
from bisect import bisect
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from suite.experiment.errors import BadInput, Place, Problem, did_you_mean, shown
from suite.experiment.source import Node, read_yaml
from suite.resources import ResourceKind, resource_dir

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=10)]
Count = Annotated[int, Field(ge=1)]

_Model = TypeVar("_Model", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fit(_Part):
    """Where a fitted constant is from: the rows it was fitted on, and the range that is physically sensible."""

    rows: str
    low: float
    high: float
    why: str = ""


class Tile(_Part):
    """A shape of output tile that matrix products are cut into, and its speed relative to the best one."""

    rows: Count
    columns: Count
    speed: Share = 1.0


class Stream(_Part):
    """The bandwidth of kernels that read and write so many bytes: those of a cache, or of the memory behind it."""

    bytes: Positive
    bandwidth: Positive  # bytes/s


class Device(_Part):
    """One accelerator, or a CPU with the threads of one rank. Rates are FLOP/s and bytes/s, times seconds."""

    name: str
    source: str
    peak: dict[Literal["fp16", "bf16", "fp32", "fp64"], Positive]  # dense
    memory_bytes: Positive
    memory_bandwidth: Positive
    streams: tuple[Stream, ...] = ()  # by ascending bytes, where caches count; between them it changes steadily
    serial: bool = False  # a processor's core: kernels are issued and operands loaded between computing, not beneath it
    shared: Share = 1.0  # speed while all devices of the node compute, relative to one alone
    units: Count = 1  # that work on one tile each: a GPU's multiprocessors
    tiles: tuple[Tile, ...] = (Tile(rows=1, columns=1),)
    gemm_efficiency: Share = 1.0  # of the peak, in long products
    gemm_ramp: Annotated[float, Field(ge=0)] = 0.0  # elements of depth that filling and draining a tile costs
    # Of what units without a tile in the last wave idle, the exponent that is paid. At its power limit a device clocks
    # higher while some idle: 0 (nothing lost) if power grows with the clock, 2/3 if with its cube, 1 at a fixed clock.
    tail: Part = 0.0
    unaligned: Share = 1.0  # speed of a product with a dimension that is no multiple of 8 elements
    memory_efficiency: Share = 1.0  # of the memory bandwidth, in element-wise kernels
    operand_efficiency: Share | None = None  # the same of a product's operands, where it differs
    update_efficiency: Share | None = None  # the same of the optimizer's update
    attention_efficiency: Share = 1.0  # the same in the kernels between the attention core's products
    flash_efficiency: Share = 0.5  # of the peak, in a fused attention core
    flash_row_seconds: Seconds = 0.0  # that a fused core's forward pass takes for a row of a head beside its products
    flash_backward: Positive = 2.5  # time of a fused core's backward pass over that of its forward pass
    function_seconds: Seconds = 0.0  # of an exponential of one element, where it is not hidden; a tangent is two
    mask_seconds: Seconds = 0.0  # of one element of a dropout mask, where its kernel does not draw it by the way
    kernel_seconds: Seconds = 0.0  # that every kernel takes on the device whatever its size
    launch_seconds: Seconds = 0.0  # that the host takes to issue one
    backward_launches: Positive = 2.0  # the host's time for a backward pass over that for its forward pass
    action_seconds: Seconds = 0.0  # that it takes for an action of the program besides
    iteration_seconds: Seconds = 0.0  # that it takes for an iteration outside its actions
    reserved_bytes: Annotated[float, Field(ge=0)] = 0.0  # of the memory: context, libraries' buffers
    fitted: dict[str, Fit] = {}

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if [one.bytes for one in self.streams] != sorted({one.bytes for one in self.streams}):
            raise ValueError("streams must ascend in bytes")
        _check(self, self.fitted)
        return self

    def bandwidth(self, size: float) -> float:
        """Bytes/s of a kernel that reads and writes `size` bytes."""
        if not self.streams or size <= 0:
            return self.memory_bandwidth
        above = bisect([one.bytes for one in self.streams], size)
        low, high = self.streams[max(above - 1, 0)], self.streams[min(above, len(self.streams) - 1)]
        if low is high:
            return low.bandwidth
        place = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
        return low.bandwidth * (high.bandwidth / low.bandwidth) ** place

    def beside(self, neighbours: float) -> Self:
        """The device while this share of its node's other devices computes too."""
        speed = 1 / (1 + (1 / self.shared - 1) * neighbours)
        if speed == 1:
            return self
        rates = {
            "peak": {name: speed * rate for name, rate in self.peak.items()},
            "memory_bandwidth": speed * self.memory_bandwidth,
            "streams": tuple(Stream(bytes=one.bytes, bandwidth=speed * one.bandwidth) for one in self.streams),
        }
        return self.model_copy(update=rates | {name: getattr(self, name) / speed for name in _TIMES})


_TIMES = (  # of a device, which are longer the slower it is
    *("kernel_seconds", "launch_seconds", "action_seconds", "iteration_seconds"),
    *("function_seconds", "mask_seconds"),
)


class Link(_Part):
    """One direction out of a device."""

    bandwidth: Positive  # bytes/s; inside a node what a ring over it reaches, in the network the adapter's line rate
    message_bandwidth: Positive | None = None  # of a message inside a node, where it is not the ring's
    latency: Seconds = 0.0  # of a message
    collective: Seconds = 0.0  # until a collective runs: issued, and the last of its ranks there
    hop: Seconds = 0.0  # added by every further rank (inside a node) or node
    # In the network: shares of the line rate that a collective reaches whose group has all devices of its nodes, one of
    # each, or some; a message goes at the rate of one.
    whole: Share = 1.0
    alone: Share = 1.0
    mixed: Share = 1.0
    fitted: dict[str, Fit] = {}

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        _check(self, self.fitted)
        return self


class Software(_Part):
    """How a training stack uses the hardware."""

    name: str
    source: str = ""
    blocking_messages: bool = False  # ranks are busy while they send to the next stage
    overlap_tensor: bool = False  # all-reduces of the backward pass run beside weight gradients
    fused_accumulation: bool = False  # a weight gradient is added up by the product itself
    added_rows: bool = False  # the embedding's gradient is added up row by row, without one of the embedding's size
    fused: bool = True  # fused element-wise kernels, where the point does not ask for the reference
    loss_reductions: Annotated[int, Field(ge=0)] = 0  # of a number a token over tensor ranks, in the cross entropy
    token_broadcasts: Annotated[int, Field(ge=0)] = 0  # to tensor ranks, before every forward pass of every stage
    action_seconds: Seconds = 0.0  # that a device stands still at every action, where the stack synchronizes there
    flash_attention: bool = False
    keeps_outputs: bool = False  # a stage's output stays in memory until its backward pass, though it has been sent
    flash_dropout: bool = True  # the fused attention core can drop probabilities
    gradient_bytes: Count = 4  # of a gradient as it is added up, in 16-bit training
    reduced_bytes: Count = 4  # of a gradient as it is summed over data-parallel ranks
    overlap_share: Part = 1.0  # of a gradient reduction beside a backward pass, what part is hidden
    slowdown: Positive = 1.0  # of all that ranks do, against the stack that the device was fitted with
    layer_seconds: Seconds = 0.0  # that a layer's passes over a microbatch wait for the host, whatever their size
    adapters: Count | None = None  # of a node that a collective uses; all where left out
    fitted: dict[str, Fit] = {}

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        _check(self, self.fitted)
        return self


class Storage(_Part):
    """The shared file system, all ranks together, bytes/s."""

    read: Positive
    write: Positive


class Hardware(_Part):
    """A cluster as the simulator sees it.

    In a file `like` names another profile, whose hardware the keys beside it change.
    """

    device: Device
    software: Software
    node_devices: Count
    node: Link
    network: Link
    storage: Storage | None = None

    @property
    def digest(self) -> str:
        """Sixteen hex digits of the constants: what is predicted with others is another prediction."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @model_validator(mode="before")
    @classmethod
    def _like_another(cls, given: Any) -> Any:
        if isinstance(given, dict):
            given = {**_hardware_of(given["like"]), **given} if isinstance(given.get("like"), str) else dict(given)
            given.pop("like", None)
        return given

    @field_validator("device", mode="before")
    @classmethod
    def _device_by_name(cls, given: Any) -> Any:
        return device_named(given) if isinstance(given, str) else given

    @field_validator("software", mode="before")
    @classmethod
    def _software_by_name(cls, given: Any) -> Any:
        return software_named(given) if isinstance(given, str) else given

    def occupied(self, ranks: int) -> Self:
        """The hardware while `ranks` ranks of a point compute on it."""
        others = min(ranks, self.node_devices) - 1
        device = self.device.beside(others / max(1, self.node_devices - 1))
        return self if device is self.device else self.model_copy(update={"device": device})


def _hardware_of(profile: str) -> dict[str, Any]:
    """What another profile's file says of its hardware."""
    found = read_yaml(_file("clusters", profile)).plain()
    if "hardware" not in found:
        raise ValueError(f"like: the profile {profile} says no hardware; selene would work")
    return dict(found["hardware"])


def _check(part: BaseModel, fitted: dict[str, Fit]) -> None:
    for name, fit in fitted.items():
        value = getattr(part, name, None)
        if not isinstance(value, int | float):
            raise ValueError(f"fitted names {name}, which is no constant here")
        if not fit.low <= value <= fit.high:
            raise ValueError(f"{name} is {value:g}; what was fitted must lie in its range, {fit.low:g} to {fit.high:g}")


def device_named(name: str) -> Device:
    """A device of `slurm/devices`. Raises ValueError, or BadInput where its file is wrong."""
    return _read(Device, _file("devices", name))


def software_named(name: str) -> Software:
    """A stack of `slurm/software`. Raises ValueError, or BadInput where its file is wrong."""
    return _read(Software, _file("software", name))


def _file(kind: ResourceKind, name: str) -> Path:
    files = {file.stem: file for file in resource_dir(kind).glob("*.yaml")}
    if name not in files:
        raise ValueError(f"there is no {name} in slurm/{kind}; {did_you_mean(name, sorted(files))}")
    return files[name]


@cache
def _read(model: type[_Model], path: Path) -> _Model:
    problems: list[Problem] = []
    found = validated(model, read_yaml(path), "", problems)
    if found is None:
        raise BadInput(problems)
    return found


def validated(model: type[_Model], node: Node, where: str, problems: list[Problem]) -> _Model | None:
    """The node as a model; what is wrong with it goes to `problems`, each with its place and field."""
    try:
        return model.model_validate(node.plain())
    except ValidationError as error:
        for one in error.errors(include_url=False):
            place, path = _place(node, one["loc"])
            message = one["msg"].removeprefix("Value error, ")
            if one["type"] != "value_error" and not isinstance(one["input"], dict):
                message = f"got {shown(one['input'])}; {message[0].lower()}{message[1:]}"
            problems.append(Problem(message, place, ".".join([where, *path] if where else path)))
        return None


def _place(node: Node, location: tuple[int | str, ...]) -> tuple[Place, list[str]]:
    """Where in the file a pydantic error lies: the deepest node on its way."""
    path = [str(part) for part in location]
    for part in location:
        inner = node.value.get(part) if isinstance(node.value, dict) else None
        if not isinstance(inner, Node):
            break
        node = inner
    return node.key_or_value_place, path
