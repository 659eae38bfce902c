"""Parameters that know their place in the whole model, and start from it under every layout."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from suite.parallel.topology import Group


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the whole model.

    `shape` is the shape before padding and sharding. `shard` is the dimension split over tensor ranks, None where
    every tensor rank has the whole. `padded` is the size of dimension 0 after padding with zeros (vocabulary).
    `std` is the standard deviation of the normal initial values; None takes the constant `fill`.
    """

    name: str
    shape: tuple[int, ...]
    shard: int | None = None
    std: float | None = None
    fill: float = 0.0
    padded: int | None = None
    decay: bool = True  # whether AdamW's weight decay applies (not to biases and norms)
    tied: bool = False  # whether the first and the last stage share it


class Described(Protocol):
    """What says which part of the whole model a tensor is."""

    spec: ParameterSpec
    shared: bool  # a second copy of a tied weight: trained here, counted on its owner


class ModelParameter(nn.Parameter):
    """A parameter with its specification."""

    spec: ParameterSpec
    shared: bool
    main_grad: torch.Tensor  # its gradient in the flat buffer, complete after the reduction


def create_parameter(
    spec: ParameterSpec, tensor: Group, seed: int, dtype: torch.dtype, shared: bool = False
) -> ModelParameter:
    """This tensor rank's shard of the parameter's initial values.

    The values depend on the seed and the parameter's name only, so that every layout starts from the same
    model: the whole parameter is drawn, in fp32 on the CPU, and sliced.
    """
    shard = shard_of(spec, initial_values(spec, seed), tensor)
    parameter = ModelParameter(shard.to(dtype=dtype, copy=True).contiguous())
    parameter.spec = spec
    parameter.shared = shared
    return parameter


def initial_values(spec: ParameterSpec, seed: int) -> torch.Tensor:
    """The whole parameter before training, unpadded, fp32."""
    if spec.std is None:
        return torch.full(spec.shape, spec.fill)
    digest = hashlib.sha256(f"{seed}:{spec.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
    return torch.randn(spec.shape, generator=generator) * spec.std


def shard_of(spec: ParameterSpec, whole: torch.Tensor, tensor: Group) -> torch.Tensor:
    """This tensor rank's part, padded with zeros where the parameter is, of a whole parameter [*spec.shape]."""
    if spec.padded and spec.padded > spec.shape[0]:
        whole = torch.cat([whole, whole.new_zeros(spec.padded - spec.shape[0], *spec.shape[1:])])
    return whole if spec.shard is None else whole.chunk(tensor.size, dim=spec.shard)[tensor.index]
