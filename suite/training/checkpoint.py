"""Checkpoints that are saved under one layout and load under any other, through torch.distributed.checkpoint.

A parameter is written as boxes of the whole, unpadded parameter, with its optimizer moments, all in the format of
the master weights. The position in the data and the dropout masks follow from the iteration's number. A checkpoint is
written beside its final name and renamed when it is whole: a kill at any moment leaves the last good one.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import StorageMeta

from suite.experiment.checkpoint_folder import PREFIX, STATE_FILE, model_fields, other_model, whole_checkpoints
from suite.parallel.flat_buffer import FlatBuffer
from suite.parallel.parameters import ParameterSpec
from suite.parallel.topology import Group
from suite.training.step import TrainingStep

KEEP = 2  # whole checkpoints left in the folder; the older ones go
_KINDS = ("weight", "first_moment", "second_moment")


@dataclass(frozen=True)
class Box:
    """This rank's part of a whole tensor: the part, where it starts in the whole, and the whole's size."""

    part: torch.Tensor
    offsets: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The box in the words of torch.distributed.checkpoint."""
        return ChunkStorageMetadata(torch.Size(self.offsets), self.part.size())


class Timing(NamedTuple):
    """One save or load: the iteration it belongs to, its bytes over all ranks, and the slowest rank's seconds."""

    iteration: int
    bytes: int
    seconds: float


class _SavePlanner(DefaultSavePlanner):
    """Plans the writing of boxes."""

    def set_up_planner(
        self, state_dict: Any, storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        self.flatten_state_dict = False
        self.state_dict, self.is_coordinator = state_dict, is_coordinator

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_write_item(name, box) for name, box in self.state_dict.items() if box.part.numel()])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].part


def _write_item(name: str, box: Box) -> WriteItem:
    properties = TensorProperties.create_from_tensor(box.part)
    data = TensorWriteData(box.chunk, properties, torch.Size(box.whole))
    return WriteItem(MetadataIndex(name, torch.Size(box.offsets)), WriteItemType.SHARD, tensor_data=data)


class _LoadPlanner(DefaultLoadPlanner):
    """Plans the reading of boxes, from whatever boxes were written."""

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        self.flatten_state_dict = False
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, box in self.state_dict.items():
            stored = self.metadata.state_dict_metadata.get(name)
            if not isinstance(stored, TensorStorageMetadata):
                raise ValueError(f"the checkpoint has no {name}; it was written by another model or optimizer")
            if tuple(stored.size) != box.whole:
                raise ValueError(f"{name} is {tuple(stored.size)} in the checkpoint and {box.whole} in this model")
            if box.part.numel():
                items += create_read_items_for_chunk_list(name, stored, [box.chunk])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        assert self.metadata is not None
        wanted = {item.dest_index.fqn for plan in global_plan for item in plan.items}
        if unwanted := sorted(self.metadata.state_dict_metadata.keys() - wanted):
            raise ValueError(f"the checkpoint has {unwanted[0]}, which this model and optimizer do not")
        return super().create_global_plan(global_plan)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].part


class Checkpoints:
    """The checkpoints of one run in one folder."""

    def __init__(self, folder: Path, step: TrainingStep) -> None:
        self.folder, self.step = folder, step
        self.world: Group = step.topology.world

    def save(self, iteration: int) -> Timing:
        """Write the state after `iteration` iterations; every rank calls this.

        Only the first data rank writes, what the others have being the same (a sharded optimizer is gathered).
        """
        begin = perf_counter()
        final = self.folder / f"{PREFIX}{iteration:08d}"
        draft = final.with_suffix(".writing")
        if self.world.index == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        boxes = self._boxes(self._wholes(gather=True), writing=True)
        self._barrier()
        writer = dcp.FileSystemWriter(draft, single_file_per_rank=True, sync_files=True)
        dcp.save(boxes, storage_writer=writer, planner=_SavePlanner(), no_dist=self.world.size == 1)
        if self.world.index == 0:
            self._write_state(draft / STATE_FILE, iteration)
            if final.exists():
                shutil.rmtree(final)
            draft.rename(final)
            self._forget_old()
        self._barrier()
        return self._timing(iteration, boxes, perf_counter() - begin)

    def load(self) -> Timing | None:
        """Read the newest whole checkpoint of the folder into the model; None where there is none.

        Raises:
            ValueError: the checkpoint is of another model or optimizer.
        """
        begin = perf_counter()
        found = whole_checkpoints(self.folder)
        if not found:
            return None
        if problems := other_model(found[-1], self.step.point.model):
            raise ValueError("\n".join(problems))
        wholes = self._wholes(gather=False)
        boxes = self._boxes(wholes, writing=False)
        reader = dcp.FileSystemReader(found[-1])
        try:
            dcp.load(boxes, storage_reader=reader, planner=_LoadPlanner(), no_dist=self.world.size == 1)
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            raise ValueError(f"{found[-1]}: {cause}") from error
        for whole in wholes:
            whole.put_back()
        state = json.loads((found[-1] / STATE_FILE).read_text())
        self.step.optimizer.steps = state["optimizer_steps"]
        for field, value in state["loss_scale"].items():
            setattr(self.step.loss_scale, field, value)
        return self._timing(state["iteration"], boxes, perf_counter() - begin)

    def _write_state(self, file: Path, iteration: int) -> None:
        scale = self.step.loss_scale
        state = {
            "iteration": iteration,
            "model": model_fields(self.step.point.model),
            "optimizer_steps": self.step.optimizer.steps,
            "loss_scale": {"value": scale.value, "good_steps": scale.good_steps, "skipped": scale.skipped},
        }
        with file.open("w") as out:
            json.dump(state, out)
            out.flush()
            os.fsync(out.fileno())

    def _wholes(self, gather: bool) -> list["_Whole"]:
        """Weights and moments of every flat buffer, put together from the data ranks where they are sharded.

        Without `gather` a sharded one is empty, to be read into.
        """
        wholes = []
        for flat, pieces in self.step.optimizer.by_buffer:
            assert isinstance(flat, FlatBuffer)
            columns = zip(*((piece.master, *piece.moments) for piece in pieces), strict=True)
            for kind, parts in zip(_KINDS, columns, strict=False):
                whole = parts[0]
                if whole.numel() < flat.values.numel():
                    whole = flat.values.new_zeros(flat.values.numel(), dtype=parts[0].dtype)
                    for bucket, part in zip(flat.buckets, parts, strict=True):
                        if gather:
                            whole[bucket.place] = flat.group.all_gather(part)
                wholes.append(_Whole(flat, kind, list(parts), whole))
        return wholes

    def _boxes(self, wholes: list["_Whole"], writing: bool) -> dict[str, Box]:
        """Every parameter's weight and moments by name; when `writing`, only what this rank is to write."""
        topology = self.step.topology
        boxes = {}
        for whole in wholes:
            for parameter in whole.flat.parameters:
                spec = parameter.spec
                first = whole.flat.group.index == 0 and (spec.shard is not None or topology.tensor.index == 0)
                if not writing or (first and not parameter.shared):
                    shard = whole.tensor[whole.flat.places[parameter]].view_as(parameter)
                    boxes[f"{spec.name}/{whole.kind}"] = _box(spec, shard, topology.tensor)
        return boxes

    def _forget_old(self) -> None:
        for path in whole_checkpoints(self.folder)[:-KEEP]:
            shutil.rmtree(path)

    def _barrier(self) -> None:
        if self.world.size > 1:
            dist.barrier()

    def _timing(self, iteration: int, boxes: Mapping[str, Box], seconds: float) -> Timing:
        bytes_here = float(sum(box.part.nbytes for box in boxes.values()))
        total, slowest = (torch.tensor(x, dtype=torch.float64, device=self.step.device) for x in (bytes_here, seconds))
        self.world.all_reduce(total)
        self.world.all_reduce(slowest, dist.ReduceOp.MAX)
        return Timing(iteration, int(total.item()), slowest.item())


@dataclass(frozen=True)
class _Whole:
    """One kind of state of a flat buffer as one flat tensor, and this rank's parts of it."""

    flat: FlatBuffer
    kind: str
    parts: list[torch.Tensor]
    tensor: torch.Tensor

    def put_back(self) -> None:
        """Hand what was read to the optimizer and, for weights, to the layers."""
        for owned, part in zip(self.flat.owned, self.parts, strict=True):
            if part is not self.tensor:
                part.copy_(self.tensor[owned])
        if self.kind == _KINDS[0]:
            self.flat.values.copy_(self.tensor)


def _box(spec: ParameterSpec, shard: torch.Tensor, tensor: Group) -> Box:
    """A shard's part of the whole parameter, without the padding of a vocabulary."""
    if spec.shard is None:
        return Box(shard, (0,) * shard.dim(), spec.shape)
    start = tensor.index * shard.shape[spec.shard]
    length = max(0, min(shard.shape[spec.shard], spec.shape[spec.shard] - start))
    offsets = tuple(min(start, spec.shape[dim]) if dim == spec.shard else 0 for dim in range(shard.dim()))
    return Box(shard.narrow(spec.shard, 0, length), offsets, spec.shape)
