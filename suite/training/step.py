"""One training iteration of one rank: forward and backward, reduction, norm, clip, update; and its samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from suite.experiment.point import Point, Training
from suite.kernels.registry import select
from suite.measure.clock import clock_for
from suite.measure.notes import Notes, Unwatched
from suite.model.gpt import Build, Stage, build_stages
from suite.parallel.data_parallel import GradientReducer, Reduction
from suite.parallel.flat_buffer import Buffer, FlatBuffer, flatten
from suite.parallel.host_streams import open_streams
from suite.parallel.parameters import Described, ModelParameter
from suite.parallel.tensor_parallel import TensorRanks, sum_replicated_gradients
from suite.parallel.topology import ALONE, Group, StageKey, Topology
from suite.parallel.weight_gradients import WeightGradients
from suite.pipeline.engine import Engine
from suite.pipeline.lowering import Lowered
from suite.pipeline.ready_engine import engine_for
from suite.pipeline.transport import Transport
from suite.training.data import Batches
from suite.training.optimizer import Optimizer, clip_factor, counted_norm_squared, scale_gradients
from suite.training.precision import DTYPES, LossScale
from suite.training.worker import ModelWorker


@dataclass(frozen=True)
class ActionTime:
    """One action as it ran, in seconds of the host's monotonic clock."""

    kind: str
    stage: int
    microbatch: int
    replica: int
    start: float
    end: float


@dataclass(frozen=True)
class WaitTime:
    """The wait for one message, on the same clock."""

    message: str
    start: float
    end: float


@dataclass(frozen=True)
class IterationSamples:
    """What one rank saw of one iteration. Times are this rank's seconds.

    `loss` and `grad_norm` are global, and None where nothing was computed.
    """

    seconds: float
    busy_by_action: dict[str, float]
    actions: list[ActionTime]
    waits: list[WaitTime]
    loss: float | None = None
    grad_norm: float | None = None
    reduction_wait: float = 0.0
    optimizer: float = 0.0
    reductions: list[Reduction] = field(default_factory=list)


class TrainingStep:
    """The model's share of this rank with everything that an iteration needs."""

    def __init__(
        self, point: Point, lowered: Lowered, topology: Topology, device: torch.device, notes: Notes | None = None
    ) -> None:
        self.point, self.topology, self.device = point, topology, device
        self.notes = notes or Unwatched()
        dtype = DTYPES[point.training.precision]
        sharding = point.parallel.sharding if topology.data.size > 1 else "none"
        schedule = lowered.schedule
        rank = topology.pipeline.index
        self.kernels = select(point.kernels, "cuda" if device.type == "cuda" else "cpu", point.model.dropout > 0)
        self.ranks = TensorRanks(topology.tensor, point.parallel.sequence)
        gradients = (
            None if sharding == "zero3" else WeightGradients(self.kernels.weight_gradient, schedule.splits_backward)
        )
        built = torch.promote_types(dtype, torch.float32) if sharding == "zero3" else dtype
        build = Build(point.model, self.ranks, point.training, built, self.kernels, gradients)
        self.stages = build_stages(point, schedule.hosted(rank), build, device)
        self.flats: Sequence[Buffer]
        self.buffers: dict[StageKey, list[FlatBuffer]] = {}  # of gradients that are reduced here
        if sharding == "zero3":
            self.flats = _fully_shard(self.stages[0, 0], topology.data, dtype, point.training)
        else:
            self.buffers = _flatten_stages(self.stages, topology, sharding == "zero1")
            self.flats = [flat for flats in self.buffers.values() for flat in flats]
        self.optimizer = Optimizer(point.training, self.flats, self.kernels.adamw)
        late = _tied_here(self.stages, self.buffers)
        if not point.parallel.overlap_reduction:
            late = [flat for flats in self.buffers.values() for flat in flats]
        self.reducer = GradientReducer(self.buffers, late)
        if gradients is not None:
            gradients.accumulated = self.reducer.accumulated
        self.loss_scale = LossScale(point.training.precision, point.training.loss_scale)
        self.clock = clock_for(device)
        self.transport = message_transport(point, topology, device)
        self.worker = ModelWorker(
            self.stages,
            schedule.virtual_stages - 1,
            build.deferred,
            self.reducer.final_backward,
            self.reducer.reduce,
        )
        self.engine = engine_for(lowered, topology, self.worker, self.transport, self.clock, self.notes.note)
        self.batches = Batches(point, topology.data.index, device)

    def parameters(self) -> Iterator[ModelParameter]:
        """Every parameter that this rank holds whole or as a tensor-parallel shard, once; none that ZeRO-3 splits."""
        for flats in self.buffers.values():
            for flat in flats:
                yield from flat.parameters

    @property
    def resizes(self) -> bool:
        """Whether tensors that live give their memory back for a while: what ZeRO-3 gathers does."""
        return not self.buffers

    def live_tensors(self) -> Iterator[torch.Tensor]:
        """What lives between iterations: values, gradients and optimizer state."""
        for flat in self.flats:
            yield from (flat.values, flat.gradients)
        yield from self.optimizer.state

    def gradients(self, iteration: int) -> tuple[float, float]:
        """The global batch's gradients, complete where their owner is; returns the mean loss and the global norm.

        The gradients carry the factor of the loss scale; the loss and the norm do not.
        """
        training, model, scale = self.point.training, self.point.model, self.loss_scale.value
        self.notes.note_phase("preparing the microbatches")
        for flat in self.flats:
            flat.gradients.zero_()
        microbatches = [self.batches.microbatch(iteration, i) for i in range(self.point.microbatches)]
        self.worker.begin(microbatches.__getitem__, scale / (training.global_batch * model.seq_length))
        self.engine.run()
        loss = self.worker.total_loss
        self.notes.note_phase("waiting for the reduction of gradients")
        self.reduction_wait = self.reducer.finish()
        sum_replicated_gradients(self._owned(lambda p: p.spec.shard is None), self.ranks)
        for gradient in self._owned(lambda p: p.spec.tied):  # both copies get the sum
            self.topology.embedding.all_reduce(gradient)
        self.notes.note_phase("reducing the loss and the gradient norm")
        if self.topology.tensor.index != 0:
            loss = torch.zeros_like(loss)  # every tensor rank has the same loss; it counts once
        norm_squared = counted_norm_squared(self.flats, self.topology, self.kernels.gradient_norm)
        totals = torch.stack([loss.to(norm_squared), norm_squared])
        scaled_loss, total = self.topology.world.all_reduce(totals).tolist()
        return scaled_loss / scale, total**0.5 / scale

    def _owned(self, wanted: Callable[[Described], bool]) -> list[torch.Tensor]:
        """Gradients of the parameters wanted, as far as this rank owns them."""
        return [view for flat in self.flats for view in flat.owned_gradients(wanted)]

    def _update(self, norm: float) -> None:
        """Unscale, clip, step, and put sharded weights together; nothing where fp16 gradients overflowed."""
        self.notes.note_phase("updating the weights")
        scale = self.loss_scale.value
        if not self.loss_scale.accepts(norm):
            return
        factor = clip_factor(norm, self.point.training.gradient_clip) / scale
        scale_gradients(self.flats, factor, self.kernels.unscale)
        self.optimizer.step()
        self.reducer.gather_values()

    def run(self, iteration: int) -> IterationSamples:
        """One iteration with its update."""
        begin = perf_counter()
        loss, norm = self.gradients(iteration)
        update = perf_counter()
        self._update(norm)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        end = perf_counter()
        return samples_of(
            self.engine,
            self.clock.seconds(),
            loss=loss,
            grad_norm=norm,
            seconds=end - begin,
            reduction_wait=self.reduction_wait,
            optimizer=end - update,
            reductions=self.reducer.reductions,
        )


def message_transport(point: Point, topology: Topology, device: torch.device) -> Transport:
    """What carries this rank's pipeline messages: activations of one microbatch, and gradients of the same shape.

    Every rank of the world calls this at the same time.
    """
    rows = point.model.seq_length // (point.parallel.tensor if point.parallel.sequence else 1)
    shape = (rows, point.training.microbatch, point.model.hidden_size)
    shared = point.parallel.scatter_gather and not point.parallel.sequence
    dtype = DTYPES[point.training.precision]
    transport = Transport(topology.pipeline, shape, dtype, device, topology.tensor if shared else ALONE)
    if device.type == "cpu" and topology.world.size > 1:
        transport.streams = open_streams(topology.pipeline.ranks, transport.empty())
    return transport


def samples_of(engine: Engine, marks: list[float], **fields: Any) -> IterationSamples:
    """The samples of the iteration that the engine has run, with the marks of its clock."""
    actions = [
        ActionTime(kind, stage, microbatch, replica, marks[ran.start], marks[ran.end])
        for ran in engine.executed
        for kind, stage, microbatch, _, replica in [ran.action]
    ]
    waits = [WaitTime(str(one.message), marks[one.start], marks[one.end]) for one in engine.waited]
    return IterationSamples(busy_by_action=engine.busy_seconds(marks), actions=actions, waits=waits, **fields)


def _fully_shard(stage: Stage, data: Group, dtype: torch.dtype, training: Training) -> Sequence[Buffer]:
    from suite.parallel.fully_sharded import shard_stage  # seconds to import, for the points that need it

    return shard_stage(stage, stage.layers, data, dtype, training.recompute == "full")


def _flatten_stages(
    stages: Mapping[StageKey, torch.nn.Module], topology: Topology, sharded: bool
) -> dict[StageKey, list[FlatBuffer]]:
    """Each stage's parameters in flat buffers; one that two stages of this rank share is in the first's."""
    seen: set[torch.Tensor] = set()
    buffers = {}
    for key, stage in stages.items():
        own = [p for p in stage.parameters() if isinstance(p, ModelParameter) and p not in seen]
        seen.update(own)
        buffers[key] = flatten(own, topology.holders(key[0]), sharded)
    return buffers


def _tied_here(stages: Mapping[StageKey, Stage], buffers: Mapping[StageKey, list[FlatBuffer]]) -> list[FlatBuffer]:
    """The buffer of a tied embedding whose gradient comes in two parts here: the head's, and the embedding's."""
    words = {stage.embedding.word for stage in stages.values() if stage.embedding is not None}
    shared = {stage.head.weight for stage in stages.values() if stage.head is not None and stage.head.weight in words}
    return [flat for flats in buffers.values() for flat in flats if shared & set(flat.parameters)]
