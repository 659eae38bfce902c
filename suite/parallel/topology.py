"""Who is who: every rank's coordinates and the process groups along each dimension."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from suite.experiment.point import Parallel


@dataclass
class Traffic:
    """Bytes that this rank has handed to a group's collectives."""

    bytes: int = 0


@dataclass(frozen=True)
class Group:
    """A process group with what its users ask of it; `handle` is None where the group is one rank."""

    size: int
    index: int
    ranks: tuple[int, ...] = (0,)
    handle: dist.ProcessGroup | None = None
    traffic: Traffic = field(default_factory=Traffic)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place over the group and return the tensor."""
        if self.size > 1:
            self.traffic.bytes += tensor.nbytes
            dist.all_reduce(tensor, op, group=self.handle)
        return tensor

    def all_reduce_async(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start summing in place over the group; None where there is nothing to wait for."""
        if self.size == 1:
            return None
        self.traffic.bytes += tensor.nbytes
        return dist.all_reduce(tensor, group=self.handle, async_op=True)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All ranks' tensors one after another along dimension 0, in the order of the group."""
        if self.size == 1:
            return tensor
        whole = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        self.traffic.bytes += tensor.nbytes
        dist.all_gather_into_tensor(whole, tensor.contiguous(), group=self.handle)
        return whole

    def reduce_scatter_async(self, tensor: torch.Tensor) -> tuple[torch.Tensor, dist.Work | None]:
        """Start summing over the group; this rank gets its share along dimension 0 once the work is done."""
        if self.size == 1:
            return tensor, None
        share = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        self.traffic.bytes += tensor.nbytes
        work = dist.reduce_scatter_tensor(share, tensor.contiguous(), group=self.handle, async_op=True)
        return share, work

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the group, of which this rank gets its share along dimension 0."""
        share, work = self.reduce_scatter_async(tensor)
        if work is not None:
            work.wait()
        return share


ALONE = Group(size=1, index=0)


@dataclass(frozen=True)
class Topology:
    """This rank's place. `embedding` joins the ranks that hold the two copies of a tied embedding."""

    rank: int
    tensor: Group = ALONE
    pipeline: Group = ALONE
    data: Group = ALONE
    embedding: Group = ALONE
    world: Group = ALONE

    @property
    def coords(self) -> dict[str, int]:
        """Coordinates of this rank by dimension."""
        return {"pipeline": self.pipeline.index, "data": self.data.index, "tensor": self.tensor.index}


def build_topology(parallel: Parallel, device_type: str, first_rank: int, last_rank: int) -> Topology:
    """Create all process groups; every rank calls this once, after `init_process_group`.

    `first_rank` and `last_rank` are the pipeline ranks that host the first and the last virtual stage.
    """
    if parallel.ranks == 1:
        return Topology(rank=0)
    outermost_first = tuple(reversed(parallel.order))
    sizes = {"tensor": parallel.tensor, "data": parallel.data, "pipeline": parallel.pipeline}
    mesh = init_device_mesh(device_type, tuple(sizes[name] for name in outermost_first), mesh_dim_names=outermost_first)
    groups = {}
    for name in outermost_first:
        handle = mesh.get_group(name)
        groups[name] = Group(
            sizes[name], mesh.get_local_rank(name), tuple(dist.get_process_group_ranks(handle)), handle
        )
    world = Group(parallel.ranks, dist.get_rank(), tuple(range(parallel.ranks)), dist.group.WORLD)
    embedding = _embedding_group(mesh.mesh, outermost_first, first_rank, last_rank)
    return Topology(dist.get_rank(), **groups, embedding=embedding, world=world)


def _embedding_group(ranks: torch.Tensor, dimensions: tuple[str, ...], first_rank: int, last_rank: int) -> Group:
    """The group of first and last stage at this rank's tensor and data coordinates; all ranks create all groups."""
    if first_rank == last_rank:
        return ALONE
    by_stage = ranks.movedim(dimensions.index("pipeline"), 0).flatten(1)
    mine = ALONE
    for pair in by_stage[[first_rank, last_rank]].T.tolist():
        handle = dist.new_group(pair)
        if dist.get_rank() in pair:
            mine = Group(2, pair.index(dist.get_rank()), tuple(pair), handle)
    return mine
