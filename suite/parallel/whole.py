"""Whole parameters to this rank's shards, and the ranks' shards back to whole parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from suite.parallel.parameters import ModelParameter, shard_of
from suite.parallel.topology import Group, Topology


def fill_parameters(parameters: Iterable[ModelParameter], tensors: Mapping[str, torch.Tensor], tensor: Group) -> None:
    """Give this rank's parameters the values of whole tensors by name, cast to the parameters' type.

    Gradients, and what an optimizer keeps beside the values, are left alone.

    Raises:
        ValueError: a parameter has no tensor, or one of another shape.
    """
    for parameter in parameters:
        spec = parameter.spec
        if spec.name not in tensors:
            raise ValueError(f"there are no values for the parameter {spec.name}; a tensor of that name would work")
        whole = tensors[spec.name]
        if tuple(whole.shape) != spec.shape:
            raise ValueError(
                f"the values for the parameter {spec.name} have the shape {list(whole.shape)}; "
                f"{list(spec.shape)} would work"
            )
        parameter.detach().copy_(shard_of(spec, whole, tensor))


def whole_of(parameter: ModelParameter, tensor: Group) -> torch.Tensor:
    """The whole parameter [*spec.shape]; every rank of the tensor group calls this."""
    spec, values = parameter.spec, parameter.detach()
    if spec.shard is None or tensor.size == 1:
        return values[: spec.shape[0]]
    shards = tensor.all_gather(values).chunk(tensor.size)
    return torch.cat(shards, dim=spec.shard)[: spec.shape[0]]


def gather_parameters(parameters: Iterable[ModelParameter], topology: Topology) -> dict[str, torch.Tensor] | None:
    """The whole model by name, on the CPU of rank 0; None elsewhere. Every rank calls this with its parameters.

    Only one tensor at a time is whole on the other ranks.
    """
    if topology.data.index != 0:
        return None
    own = {parameter.spec.name: parameter for parameter in parameters if not parameter.shared}
    tensor, pipeline = topology.tensor, topology.pipeline
    first = pipeline.ranks[0]
    coming = _announced(own, topology) if tensor.index == 0 else []
    gathered: dict[str, torch.Tensor] = {}
    for name, parameter in own.items():
        whole = whole_of(parameter, tensor)
        if tensor.index == 0 and pipeline.index == 0:
            gathered[name] = whole.to("cpu", copy=True)
        elif tensor.index == 0:
            dist.send(whole.contiguous(), dst=first, group=pipeline.handle)
    for rank, specs in zip(pipeline.ranks[1:], coming[1:], strict=False):
        for name, shape, dtype, device in specs:
            whole = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(whole, src=rank, group=pipeline.handle)
            gathered[name] = whole.cpu()
    return gathered if topology.rank == 0 else None


def _announced(own: dict[str, ModelParameter], topology: Topology) -> list[list[Any]]:
    """On the first pipeline rank: what each pipeline rank will send, in order."""
    pipeline = topology.pipeline
    mine = [(name, p.spec.shape, p.dtype, p.device.type) for name, p in own.items()]
    if pipeline.size == 1:
        return [mine]
    everyone: list[Any] | None = [None] * pipeline.size if pipeline.index == 0 else None
    dist.gather_object(mine, everyone, dst=pipeline.ranks[0], group=pipeline.handle)
    return everyone or []
