"""One training step from torch's own parts: pipelining, tensor parallelism, data parallelism, AdamW.

`fully_shard` is left out: all ranks hold all weights here, as with the suite's plain data parallelism.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from benchmarks.engine.peer_model import Gpt, gpt, loss_of, suites_weights
from benchmarks.engine.peer_pipeline import Pipeline, hosted
from benchmarks.engine.peer_tensor import settle_gradients, split_loss, split_over
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from suite.experiment.point import Point
from suite.training.data import open_source
from suite.training.optimizer import ADAM_BETAS, ADAM_EPS, WEIGHT_DECAY

BUCKET_ELEMENTS = 25 << 18  # 25 MiB of fp32, DistributedDataParallel's own default


@dataclass(frozen=True)
class Recipe:
    """How torch's parts are put together: a key of `SCHEDULES`, the layers of every stage, and options."""

    schedule: str = "1f1b"
    split: tuple[float, ...] = ()
    sequence: bool = False
    compiled: bool = False
    device: str = "cpu"  # a GPU ("cuda") for a single process


class PeerStep:
    """This rank's share of the point's model, and its optimizer."""

    def __init__(self, point: Point, recipe: Recipe) -> None:
        self.point = point
        parallel, model = point.parallel, point.model
        self.meshes = _meshes(point)
        self.data, self.pipeline, self.tensor = (_place(self.meshes.get(n)) for n in ("data", "pipeline", "tensor"))
        halves = {0: range(2 * model.layers)}
        if parallel.pipeline > 1:
            halves = hosted(recipe.schedule, recipe.split, self.pipeline, parallel.pipeline)
        weights = suites_weights(point)
        self.device = torch.device(recipe.device)
        stages = {stage: gpt(point, of_stage, weights).to(self.device) for stage, of_stage in halves.items()}
        self.word_here = _tie(list(stages.values()))
        if parallel.tensor > 1:
            for stage in stages.values():
                split_over(stage, self.meshes["tensor"], recipe.sequence)
            _tie(list(stages.values()))
        if recipe.compiled:
            for stage in stages.values():
                for layer in stage.layers.values():
                    layer.compile()
        self.named = {name: p for stage in stages.values() for name, p in stage.named_parameters()}
        self.parameters = list(dict.fromkeys(self.named.values()))
        self.wrapped = parallel.data > 1 and parallel.tensor == 1
        modules = {s: self._reduced(stage) if self.wrapped else stage for s, stage in stages.items()}
        self.loss_of = split_loss(self.meshes["tensor"]) if parallel.tensor > 1 else loss_of
        self.forward_backward = self._pipelined(recipe, modules) if parallel.pipeline > 1 else self._alone(modules[0])
        self.optimizer = torch.optim.AdamW(
            list(_groups(self.parameters)), point.training.learning_rate, ADAM_BETAS, ADAM_EPS, fused=True
        )
        self.source = open_source(point)

    def run(self, iteration: int) -> float:
        """One iteration; the mean loss over the global batch."""
        # With several microbatches the gradients of DistributedDataParallel stay where they are reduced.
        self.optimizer.zero_grad(set_to_none=not self.wrapped or self.point.microbatches == 1)
        batch = self.point.training.global_batch
        share = batch // self.point.parallel.data
        first = iteration * batch + self.data * share
        rows = torch.stack([self.source.sequence(first + number) for number in range(share)]).to(self.device)
        split = loss_parallel() if self.point.parallel.tensor > 1 else contextlib.nullcontext()
        with split:
            loss = self.forward_backward(rows[:, :-1], rows[:, 1:])
        return self._update(loss)

    def _update(self, loss: torch.Tensor) -> float:
        """Reduce, clip, step; the loss is this rank's part of it."""
        parallel = self.point.parallel
        settle_gradients(self.parameters)
        gradients = {p: _local(p.grad) for p in self.parameters}
        if parallel.data > 1 and not self.wrapped:
            average(list(gradients.values()), self.meshes["data"].get_group())
        word = self.named.get("embedding.word.weight", self.named.get("head.weight"))
        if parallel.pipeline > 1 and not self.word_here and word is not None:
            dist.all_reduce(gradients[word], group=self.meshes["pipeline"].get_group())
        totals = torch.stack([loss / (parallel.data * parallel.tensor), self._squared_norm(gradients)])
        if parallel.ranks > 1:
            dist.all_reduce(totals)
        mean, squared = totals.tolist()
        limit = self.point.training.gradient_clip
        if squared**0.5 > limit:
            torch._foreach_mul_(list(gradients.values()), limit / (squared**0.5 + 1e-6))
        self.optimizer.step()
        return mean

    def _squared_norm(self, gradients: dict[nn.Parameter, torch.Tensor]) -> torch.Tensor:
        """This rank's part of the global squared norm; the head's copy of a tied weight on another rank has none."""
        copied = None if self.word_here else self.named.get("head.weight")
        split, whole = [], []
        for parameter, gradient in gradients.items():
            sharded = isinstance(parameter, DTensor) and any(p.is_shard() for p in parameter.placements)
            if parameter is not copied:
                (split if sharded else whole).append(gradient)
        tensor, data = self.point.parallel.tensor, self.point.parallel.data
        return (get_total_norm(split) ** 2 + get_total_norm(whole) ** 2 / tensor) / data

    def _reduced(self, stage: nn.Module) -> nn.Module:
        group = self.meshes["data"].get_group()
        return DistributedDataParallel(stage, process_group=group, gradient_as_bucket_view=True)

    def _pipelined(
        self, recipe: Recipe, modules: dict[int, nn.Module]
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        model, b, t = self.point.model, self.point.training.microbatch, self.point.parallel.tensor
        s, rows = model.seq_length, model.seq_length // (t if recipe.sequence else 1)
        count = self.point.microbatches
        return Pipeline(
            recipe.schedule,
            modules,
            len(recipe.split),
            count,
            ((b, s), (b, rows, model.hidden_size), (b, s, model.vocab_size // t)),
            self.meshes["pipeline"].get_group(),
            lambda logits, targets: self.loss_of(logits, targets) / count,
        ).run

    def _alone(self, module: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """All microbatches one after another; gradients are reduced during the last backward."""

        def run(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            microbatches = list(zip(*(x.split(self.point.training.microbatch) for x in (tokens, targets)), strict=True))
            total = torch.zeros((), device=self.device)
            for index, (some, wanted) in enumerate(microbatches, start=1):
                unreduced = self.wrapped and index < len(microbatches)
                with module.no_sync() if unreduced else contextlib.nullcontext():
                    loss = self.loss_of(module(some), wanted) / len(microbatches)
                    loss.backward()
                total += loss.detach()
            return total

        return run


def average(gradients: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """The mean over the group, in place, in buckets that are on their way while the next is put together."""
    buckets: list[list[torch.Tensor]] = [[]]
    for gradient in gradients:
        if buckets[-1] and sum(g.numel() for g in buckets[-1]) + gradient.numel() > BUCKET_ELEMENTS:
            buckets.append([])
        buckets[-1].append(gradient)
    started = []
    for bucket in buckets:
        flat = _flatten_dense_tensors(bucket)
        started.append((bucket, flat, dist.all_reduce(flat, dist.ReduceOp.AVG, group=group, async_op=True)))
    for bucket, flat, work in started:
        work.wait()
        torch._foreach_copy_(bucket, list(_unflatten_dense_tensors(flat, bucket)))


def _meshes(point: Point) -> dict[str, DeviceMesh]:
    """The mesh of each dimension that has several ranks; neighbours are tensor ranks, then data, then pipeline."""
    names = [name for name in ("pipeline", "data", "tensor") if getattr(point.parallel, name) > 1]
    if not names:
        return {}
    mesh = init_device_mesh("cpu", tuple(getattr(point.parallel, n) for n in names), mesh_dim_names=tuple(names))
    return {name: mesh[name] for name in names}


def _place(mesh: DeviceMesh | None) -> int:
    return 0 if mesh is None else mesh.get_local_rank()


def _tie(stages: list[Gpt]) -> bool:
    """Where this rank has both embedding and head, in two stages, give them one weight; whether it has both."""
    embeddings = [stage.embedding for stage in stages if stage.embedding is not None]
    heads = [stage.head for stage in stages if stage.head is not None]
    for head, embedding in zip(heads, embeddings, strict=False):
        head.weight = embedding.word.weight
    return bool(heads and embeddings)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _groups(parameters: Iterable[nn.Parameter]) -> Iterable[dict[str, object]]:
    """Weight decay on what has two dimensions; the fused optimizer takes no plain beside distributed tensors."""
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.ndim > 1, isinstance(parameter, DTensor)), []).append(parameter)
    for (decays, _), members in kinds.items():
        yield {"params": members, "weight_decay": WEIGHT_DECAY if decays else 0.0}
