"""The record: what one launch of one point leaves behind. Raw samples only; rates are never stored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

SCHEMA_VERSION = 1

Source = Literal["measured", "emulated", "simulated", "published"]
Status = Literal["ok", "oom", "failed", "timeout", "preempted", "cancelled", "skipped", "invalid"]

Bytes = Annotated[int, Field(ge=0)]
Moment = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    """A part of a record. Unknown fields are kept, so that a newer suite's records stay readable."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


class Iterations(_Part):
    """Samples per iteration, warm-up included: the first `warmup` entries are not to be timed."""

    seconds: list[float]  # wall time of the slowest rank
    loss: list[float] | None = None  # mean over the tokens of the global batch, before the update
    grad_norm: list[float] | None = None  # global L2 norm before clipping
    warmup: Annotated[int, Field(ge=0)]
    forward_backward_seconds: list[float] | None = None  # first action's start to last action's end, slowest rank

    @model_validator(mode="after")
    def _some_are_timed(self) -> Self:
        if self.warmup >= len(self.seconds):
            raise ValueError(f"warmup is {self.warmup}, and there are {len(self.seconds)} iterations to leave out of")
        return self


class RankSamples(_Part):
    """What one rank saw. Lists run over iterations, warm-up included."""

    rank: int
    coords: dict[str, int]  # {"pipeline": 0, "data": 0, "tensor": 0}
    peak_memory_bytes: Bytes | None = None  # allocator's peak on a GPU, live tensor bytes on a CPU
    rss_bytes: Bytes | None = None  # peak resident set of the process, beside it
    optimizer_bytes: Bytes | None = None
    busy_seconds: list[float]  # sum of the pipeline actions' times
    busy_by_action: dict[str, list[float]]  # the same by kind of action: "F", "BW", ...
    bytes_by_link: dict[str, Bytes] | None = None  # bytes sent per iteration, by "pipeline", "tensor", "data"
    skipped_steps: int = 0


class TraceSpan(_Part):
    """One action as it ran, in seconds since the traced iteration's first action on any rank."""

    rank: int
    kind: str
    stage: int  # global virtual stage
    microbatch: int
    replica: int = 0
    start: Moment
    end: Moment


class Trace(_Part):
    """One iteration's actions on the ranks of the first tensor and data coordinate, one row a pipeline rank."""

    iteration: int
    spans: list[TraceSpan]


class CheckpointTiming(_Part):
    """One save or load of a checkpoint."""

    iteration: int
    bytes: Bytes  # over all ranks
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of the slowest rank


class CheckpointSamples(_Part):
    """The saves and loads of a launch, and the folder that they went to."""

    path: str | None = None
    saves: list[CheckpointTiming]
    loads: list[CheckpointTiming]


class Memory(_Part):
    """Predicted bytes of the fullest pipeline rank against the device's, and by what they hold."""

    predicted_bytes: Bytes
    capacity_bytes: Annotated[int, Field(gt=0)]
    verdict: Literal["fits", "does not fit", "undecided"]
    margin: float  # of the capacity, within which there is no verdict
    rank: int
    parts: dict[str, int]


class Environment(TypedDict, total=False):
    """Software, host and device: the keys that numbers and reports rest on; what else there is, is kept."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    host: str | None
    device: str | None  # "cpu", or the accelerator by its driver's name
    cpu: str | None
    cores: int | None
    threads_per_rank: int | None
    peak_flops_per_rank: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    peak_source: str | None
    peak_reason: str | None  # why there is no peak


class Record(_Part):
    """One launch of one point; `reason` says why where the status is not ok."""

    schema_version: int = Field(SCHEMA_VERSION, alias="schema")
    experiment: str
    scale: str
    point_id: str
    source: Source
    point: dict[str, Any]
    status: Status
    reason: str | None = None
    iterations: Iterations | None = None
    ranks: list[RankSamples] | None = None
    trace: Trace | None = None
    kernels: dict[str, str] | None = None
    preflight: dict[str, Any] | None = None
    checkpoint: CheckpointSamples | None = None
    evaluation_loss: float | None = None  # mean over held-out tokens, after the last iteration
    breakdown_seconds: dict[str, list[float]] | None = None
    memory: Memory | None = None
    oversubscribed: bool | None = None
    flops_version: int | None = None
    environment: Environment = {}
    started: str
    finished: str
