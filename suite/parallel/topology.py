"""Who is who: every rank's coordinates and the process groups along each dimension."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from suite.experiment.point import Parallel
from suite.parallel.host_collectives import HostCollectives, collective_layout
from suite.parallel.host_memory import share_memory


class Pending(Protocol):
    """A collective that was started."""

    def wait(self) -> object:
        """Wait until it is done."""


@dataclass
class Traffic:
    """Bytes that this rank has handed to a group's collectives."""

    bytes: int = 0


@dataclass(frozen=True)
class Group:
    """A process group with what its users ask of it; `handle` is None where the group is one rank.

    Ranks that share `memory` use it, and torch's backend otherwise.
    """

    size: int
    index: int
    ranks: tuple[int, ...] = (0,)
    handle: dist.ProcessGroup | None = None
    traffic: Traffic = field(default_factory=Traffic)
    memory: HostCollectives | None = None

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place over the group and return the tensor."""
        if self.size > 1:
            self.traffic.bytes += tensor.nbytes
            if self.memory is not None:
                self.memory.all_reduce(tensor, op).wait()
            else:
                dist.all_reduce(tensor, op, group=self.handle)
        return tensor

    def all_reduce_async(self, tensor: torch.Tensor) -> Pending | None:
        """Start summing in place over the group; None where there is nothing to wait for."""
        if self.size == 1:
            return None
        self.traffic.bytes += tensor.nbytes
        if self.memory is not None:
            return self.memory.all_reduce(tensor)
        return dist.all_reduce(tensor, group=self.handle, async_op=True)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All ranks' tensors one after another along dimension 0, in the order of the group."""
        if self.size == 1:
            return tensor
        whole = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        self.traffic.bytes += tensor.nbytes
        if self.memory is not None:
            self.memory.all_gather(whole, tensor.contiguous()).wait()
        else:
            dist.all_gather_into_tensor(whole, tensor.contiguous(), group=self.handle)
        return whole

    def reduce_scatter_async(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Pending | None]:
        """Start summing over the group; this rank gets its share along dimension 0 once the work is done."""
        if self.size == 1:
            return tensor, None
        share = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        self.traffic.bytes += tensor.nbytes
        if self.memory is not None:
            return share, self.memory.reduce_scatter(share, tensor.contiguous())
        return share, dist.reduce_scatter_tensor(share, tensor.contiguous(), group=self.handle, async_op=True)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the group, of which this rank gets its share along dimension 0."""
        share, work = self.reduce_scatter_async(tensor)
        if work is not None:
            work.wait()
        return share


ALONE = Group(size=1, index=0)

StageKey = tuple[int, int]  # virtual stage, replica
Placement = Sequence[Sequence[int]]  # [replica][virtual stage] -> pipeline rank


@dataclass(frozen=True)
class Topology:
    """This rank's place.

    `embedding` joins the ranks that hold the two copies of a tied embedding, `copies` those that hold the same virtual
    stage: the data-parallel ranks and, where the pipeline has replicas, theirs.
    """

    rank: int
    tensor: Group = ALONE
    pipeline: Group = ALONE
    data: Group = ALONE
    embedding: Group = ALONE
    world: Group = ALONE
    copies: Mapping[int, Group] = field(default_factory=dict)  # by virtual stage, where it is not `data`

    def holders(self, stage: int) -> Group:
        """The ranks that hold copies of a virtual stage that this rank holds, and add up its gradients."""
        return self.copies.get(stage, self.data)

    @property
    def backend(self) -> str:
        """What carries collectives between ranks on processors."""
        groups = (self.tensor, self.data, self.embedding, self.world, *self.copies.values())
        return "gloo and shared memory" if any(group.memory is not None for group in groups) else "gloo"

    @property
    def coords(self) -> dict[str, int]:
        """Coordinates of this rank by dimension."""
        return {"pipeline": self.pipeline.index, "data": self.data.index, "tensor": self.tensor.index}


def build_topology(parallel: Parallel, device_type: str, placement: Placement) -> Topology:
    """Create all process groups; every rank calls this once, after `init_process_group`.

    Where there are replicas and tied embeddings, each rank with a first stage has to have a last one.
    """
    if parallel.ranks == 1:
        return Topology(rank=0)
    outermost_first = tuple(reversed(parallel.order))
    sizes = {"tensor": parallel.tensor, "data": parallel.data, "pipeline": parallel.pipeline}
    mesh = init_device_mesh(device_type, tuple(sizes[name] for name in outermost_first), mesh_dim_names=outermost_first)
    groups: dict[str, Group] = {}
    for name in outermost_first:
        handle = mesh.get_group(name)
        groups[name] = Group(
            sizes[name], mesh.get_local_rank(name), tuple(dist.get_process_group_ranks(handle)), handle
        )
    world = Group(parallel.ranks, dist.get_rank(), tuple(range(parallel.ranks)), dist.group.WORLD)
    where = [outermost_first.index(name) for name in ("pipeline", "tensor", "data")]
    ranks = mesh.mesh.permute(*where)  # [pipeline, tensor, data]
    embedding = _embedding_group(ranks, placement)
    copies = _copies(ranks, placement) if len(placement) > 1 else {}
    named = {**groups, "embedding": embedding, "world": world}
    named |= {f"stage {stage}": group for stage, group in copies.items()}
    if device_type == "cpu":
        named = with_memory(named)
    copies = {stage: named.pop(f"stage {stage}") for stage in copies}
    return Topology(dist.get_rank(), **named, copies=copies)


def with_memory(groups: Mapping[str, Group]) -> dict[str, Group]:
    """The groups, those on one host with memory; every rank of the world calls this, with its own groups by name."""
    shared = share_memory({name: group.ranks for name, group in groups.items()}, collective_layout)
    memory = {name: HostCollectives(one) for name, one in shared.items()}
    return {name: replace(group, memory=memory.get(name)) for name, group in groups.items()}


def _embedding_group(ranks: torch.Tensor, placement: Placement) -> Group:
    """The group of first and last stage at this rank's tensor and data coordinates; all ranks create all groups.

    With replicas every rank that has a first stage has a last one too if they are tied: it then has the weight once.
    """
    if len(placement) > 1 or placement[0][0] == placement[0][-1]:
        return ALONE
    mine = ALONE
    for pair in ranks.flatten(1)[[placement[0][0], placement[0][-1]]].T.tolist():
        handle = dist.new_group(pair)
        if dist.get_rank() in pair:
            mine = Group(2, pair.index(dist.get_rank()), tuple(pair), handle)
    return mine


def _copies(ranks: torch.Tensor, placement: Placement) -> dict[int, Group]:
    """By virtual stage, the ranks that hold its replicas on all data ranks; all ranks create all groups."""
    made: dict[tuple[int, ...], Group] = {}
    copies = {}
    for stage in range(len(placement[0])):
        hosts = sorted({row[stage] for row in placement})
        for members in ranks[hosts].transpose(0, 1).flatten(1).tolist():  # one tensor coordinate each
            key = tuple(members)
            if key not in made:
                handle = dist.new_group(members)
                inside = dist.get_rank() in members
                made[key] = Group(len(key), key.index(dist.get_rank()) if inside else 0, key, handle)
            if dist.get_rank() in key:
                copies[stage] = made[key]
    return copies
