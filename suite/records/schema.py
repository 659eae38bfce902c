"""The record: what one launch of one point leaves behind. Raw samples only; rates are never stored."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Source = Literal["measured", "emulated", "simulated", "published"]
Status = Literal["ok", "oom", "failed", "timeout", "preempted", "cancelled", "skipped", "invalid"]


class _Part(BaseModel):
    """A part of a record. Unknown fields are kept, so that a newer suite's records stay readable."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


class Iterations(_Part):
    """Samples per iteration, warm-up included: the first `warmup` entries are not to be timed."""

    seconds: list[float]  # wall time of the slowest rank
    loss: list[float] | None = None  # mean over the tokens of the global batch, before the update
    grad_norm: list[float] | None = None  # global L2 norm before clipping
    warmup: int
    forward_backward_seconds: list[float] | None = None  # first action's start to last action's end, slowest rank


class RankSamples(_Part):
    """What one rank saw. Lists run over iterations, warm-up included."""

    rank: int
    coords: dict[str, int]  # {"pipeline": 0, "data": 0, "tensor": 0}
    peak_memory_bytes: int | None = None  # allocator's peak on a GPU, live tensor bytes on a CPU
    rss_bytes: int | None = None  # peak resident set of the process, beside it
    optimizer_bytes: int | None = None
    busy_seconds: list[float]  # sum of the pipeline actions' times
    busy_by_action: dict[str, list[float]]  # the same by kind of action: "F", "BW", ...
    bytes_by_link: dict[str, int] | None = None  # bytes sent per iteration, by "pipeline", "tensor", "data"
    skipped_steps: int = 0


class TraceSpan(_Part):
    """One action as it ran, in seconds since the traced iteration's first action on any rank."""

    rank: int
    kind: str
    stage: int  # global virtual stage
    microbatch: int
    replica: int = 0
    start: float
    end: float


class Trace(_Part):
    """One iteration's actions on the ranks of the first tensor and data coordinate, one row a pipeline rank."""

    iteration: int
    spans: list[TraceSpan]


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
    checkpoint: dict[str, Any] | None = None
    evaluation_loss: float | None = None  # mean over held-out tokens, after the last iteration
    breakdown_seconds: dict[str, list[float]] | None = None
    oversubscribed: bool | None = None
    flops_version: int | None = None
    environment: dict[str, Any] = {}
    started: str
    finished: str
