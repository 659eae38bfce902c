"""A point: one fully resolved configuration, its derived sizes and its identity.

The field names are a contract: experiment files, overrides, records and reports use exactly these.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from suite.experiment.models import MODELS
from suite.pipeline.names import ScheduleName, default_chunks
from suite.pipeline.program import MOST_ACTIONS

Dimension = Literal["tensor", "data", "pipeline"]
KernelSet = Literal["auto", "reference", "torch", "triton", "apex"]

MOST = 1_000_000_000  # of anything that is counted; far beyond any use, and small enough to compute with
MOST_LAYERS = MOST_ACTIONS // 2  # one per virtual stage of the longest schedule of one microbatch

# Strict scalars: `true` is not 1, "4" is not 4 and 2.0 is not a count. A whole number may stand for a float.
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Layers = Annotated[int, Field(strict=True, ge=1, le=MOST_LAYERS)]
Halves = Annotated[
    float,
    Field(strict=True, ge=0.5, multiple_of=0.5, le=MOST_LAYERS),
    AfterValidator(lambda number: int(number) if number.is_integer() else number),
    PlainSerializer(lambda number: number),  # 4 stays 4 in records and ids
]
Whole = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Seed = Annotated[int, Field(strict=True, ge=0, le=10**12)]  # times a million it is still a seed that torch takes
Flag = Annotated[bool, Field(strict=True)]
Fraction = Annotated[float, Field(strict=True, ge=0, lt=1)]
Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Limit = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=1e7)]
Paced = Annotated[float, Field(strict=True, gt=0, le=1e4)]
Travel = Annotated[float, Field(strict=True, ge=0, le=1e4)]
Bandwidth = Annotated[float, Field(strict=True, ge=0, le=1e15)]
LossScale = Annotated[float, Field(strict=True, gt=0, le=2.0**32)]


class Section(BaseModel):
    """A group of fields: unknown keys are refused, and a resolved section is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """The shape of the GPT. Sizes are counts; `name` is a label and not part of a point's identity."""

    name: str | None = None
    layers: Layers
    hidden_size: Count
    heads: Count
    ffn_hidden_size: Count = 0  # left out: 4 * hidden_size
    vocab_size: Count = 51200
    seq_length: Count = 2048
    dropout: Fraction = 0.1
    tied_embeddings: Flag = True

    @model_validator(mode="before")
    @classmethod
    def _from_zoo(cls, given: Any) -> Any:
        """A bare name, or a name beside other fields, takes the zoo's shape; fields given win over it."""
        if isinstance(given, str):
            if given not in MODELS:
                raise PydanticCustomError("unknown_model", "unknown model '{name}'", {"name": given})
            given = {"name": given}
        if isinstance(given, dict) and isinstance(given.get("name"), str) and given["name"] in MODELS:
            given = {**MODELS[given["name"]], **given}
        return given

    @model_validator(mode="after")
    def _default_ffn(self) -> Self:
        if not self.ffn_hidden_size:
            object.__setattr__(self, "ffn_hidden_size", 4 * self.hidden_size)
        return self


class Parallel(Section):
    """The layout. `order` names the dimensions from the innermost (neighbouring ranks) outwards.

    `overlap_reduction`: gradients are reduced over the data ranks while the backward pass runs, or else after it.
    """

    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    sequence: Flag = False
    scatter_gather: Flag = False
    sharding: Literal["none", "zero1", "zero3"] = "none"
    overlap_reduction: Flag = True
    order: tuple[Dimension, Dimension, Dimension] = ("tensor", "data", "pipeline")

    @property
    def ranks(self) -> int:
        """Processes of the point: tensor * pipeline * data."""
        return self.tensor * self.pipeline * self.data

    def coordinates(self, rank: int) -> dict[Dimension, int]:
        """Where a rank stands in each dimension."""
        found: dict[Dimension, int] = {}
        for dimension in self.order:
            rank, found[dimension] = divmod(rank, getattr(self, dimension))
        return found


class Schedule(Section):
    """The pipeline schedule; `chunks` is the number of model chunks per rank (the paper's v).

    `group`: microbatches per group of the interleaved schedules; left out, the pipeline size. `cap`: microbatches in
    flight, in shares of a rank. `base`: the schedule that `readiness` takes as its hint; left out, 1f1b. `costs`:
    time of F, B and W that `list` makes its order for; `latency`: that of a message; `kept`: the share of a
    microbatch's activations that its `cap` counts between B and W. `split`: layers per virtual stage, of which half a
    one is its attention or its feed-forward part. `digest`: a hash of the file's content, which a plan fills in: the
    same program is the same point under any path.
    """

    name: ScheduleName = "1f1b"
    chunks: Count = 1
    group: Count | None = None
    cap: Count | None = None
    base: ScheduleName | None = None
    split: tuple[Halves, ...] | None = None
    file: str | None = None
    digest: str | None = None
    costs: tuple[Rate, Rate, Rate] = (1.0, 1.0, 1.0)
    latency: Limit = 0.0
    kept: Share = 1.0

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, dict) and "chunks" not in given:
            given = {**given, "chunks": default_chunks(given.get("name", "1f1b"))}
        return given


class Training(Section):
    """One optimizer step: sizes in sequences, `seed` fixes weights, data order and dropout."""

    global_batch: Count
    microbatch: Count = 1
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = "fp32"
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_layers: Count = 1  # layers between the inputs that full recomputation keeps
    seed: Seed = 1234
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Rate = 1e-4
    gradient_clip: Limit = 1.0  # 0: no clipping
    loss_scale: Literal["dynamic"] | LossScale = "dynamic"


class Data(Section):
    """Where tokens come from.

    `path` is a file, for text also the name of a module of Python itself, and for Megatron data what the names of the
    `.bin` and the `.idx` file have in common. `tokenizer` is a tokenizer.json for text, which is read as bytes without.
    `validation` is the path of the tokens held out for evaluation; synthetic tokens are drawn anew for it.
    """

    source: Literal["synthetic", "text", "megatron"] = "synthetic"
    path: str | None = None
    tokenizer: str | None = None
    validation: str | None = None


class Measure(Section):
    """How a point is timed: iterations left out, iterations kept, repeated launches, trace kept or not."""

    warmup: Count = 2
    iterations: Count = 10
    launches: Count = 1
    trace: Flag = False  # keep one iteration's actions in the record, and a trace file of every rank beside it
    profile: Flag = False  # run one more iteration under torch's profiler, after the timed ones
    evaluation: Whole = 0  # global batches of held-out tokens whose loss is taken at the end
    stall_seconds: Seconds = 600.0  # a rank that gets no further for so long ends the point


class Pace(Section):
    """What actions and messages take where nothing is computed: at emulated and at simulated points.

    Seconds of F, B and W of one microbatch on one rank's whole share of the model; a chunk takes 1/v of them. A
    simulated message has a latency in seconds, and a bandwidth in bytes/s (0: unlimited); an emulated one is real.
    """

    forward: Paced = 0.02
    input_gradient: Paced = 0.02
    weight_gradient: Paced = 0.02
    latency: Travel = 0.0
    bandwidth: Bandwidth = 0.0
    overlap: Flag = True  # whether ranks compute while messages travel


class Checkpoint(Section):
    """Saving and loading the training state, and weights in and out.

    `path` is the folder of the suite's own checkpoints; left out, it is the launch's own. `weights` is a folder with a
    GPT-2 in Hugging Face's form to start from.
    """

    every: Whole = 0  # iterations between two saves; 0: none
    load: Flag = False  # start from the newest checkpoint in `path`
    path: str | None = None
    weights: str | None = None
    export: Flag = False  # at the end, write the weights in Hugging Face's form into the launch's folder


class Point(Section):
    """One fully resolved configuration: what a record carries and what ranks are started with."""

    model: Model
    parallel: Parallel = Parallel()
    schedule: Schedule = Schedule()
    training: Training
    data: Data = Data()
    kernels: KernelSet | dict[str, KernelSet] = "auto"
    measure: Measure = Measure()
    pace: Pace = Pace()
    checkpoint: Checkpoint = Checkpoint()
    cluster: str = "local"

    @property
    def microbatches(self) -> int:
        """Microbatches m per pipeline and iteration; meaningful for a valid point only."""
        return self.training.global_batch // (self.parallel.data * self.training.microbatch)

    @property
    def virtual_stages(self) -> int:
        """Pipeline stages over all ranks, counting every model chunk."""
        return self.parallel.pipeline * self.schedule.chunks

    @property
    def layout(self) -> str:
        """The layout as people write it: (tensor, pipeline, data)."""
        return f"({self.parallel.tensor},{self.parallel.pipeline},{self.parallel.data})"

    @property
    def schedule_label(self) -> str:
        """The schedule's name, with its chunks where there are several."""
        chunks = self.schedule.chunks
        return self.schedule.name if chunks == 1 else f"{self.schedule.name} v={chunks}"

    @property
    def id(self) -> str:
        """Eight hex digits of the configuration's SHA-256.

        Left out: fields at their default (a new field changes no old id), paths and labels (the same
        configuration has the same id on any machine), and the number of launches (measuring more often
        does not make another point).
        """
        resolved = self.model_dump(mode="json", exclude_defaults=True)
        resolved.get("model", {}).pop("name", None)
        for path in ("path", "validation"):
            resolved.get("data", {}).pop(path, None)
        if self.data.tokenizer is not None:
            resolved["data"]["tokenizer"] = True  # which file is a path; that there is one makes other tokens
        resolved.get("checkpoint", {}).pop("path", None)
        if self.checkpoint.weights is not None:
            resolved["checkpoint"]["weights"] = True
        resolved.get("schedule", {}).pop("file", None)
        for limit in ("launches", "stall_seconds"):
            resolved.get("measure", {}).pop(limit, None)
        if self.model.ffn_hidden_size == 4 * self.model.hidden_size:
            resolved["model"].pop("ffn_hidden_size", None)
        resolved = {section: fields for section, fields in resolved.items() if fields != {}}
        canonical = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]
