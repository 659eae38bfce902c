"""Parameters and gradients of a stage in flat buffers: one tensor to reduce, to clip and to update.

Parameters in 16 bits have fp32 main gradients, to which every microbatch's gradient is added, and fp32 master
weights, which the optimizer updates (paper section 5: mixed precision).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from suite.parallel.parameters import Described, ModelParameter
from suite.parallel.topology import ALONE, Group

BUCKET_BYTES = 8 << 20  # of gradients that are reduced together


@dataclass(frozen=True)
class Bucket:
    """Parameters that lie next to each other, and the slice of the flat tensors that they fill."""

    parameters: tuple[ModelParameter, ...]
    place: slice


class Buffer(Protocol):
    """What the norm, the clipping and the update ask of parameters that are kept together."""

    values: torch.Tensor
    gradients: torch.Tensor
    dtype: torch.dtype
    owned: list[slice]
    sharded: bool  # whether the other ranks of `group` own other pieces, or the same
    group: Group  # the ranks that hold copies of the parameters

    @property
    def decay(self) -> bool:
        """Whether weight decay applies to these parameters."""

    def owned_gradients(self, wanted: Callable[[Described], bool]) -> list[torch.Tensor]:
        """Flat views of the gradients of the parameters wanted, as far as this rank owns them."""


class FlatBuffer:
    """Parameters whose values and gradients are views of two flat tensors, cut into buckets.

    The parameters lie in the reverse of the order given, which is about the order in which the backward pass
    finishes them, so that a bucket's gradients are ready at about the same time.

    `group` are the ranks that hold copies of these parameters and add up their gradients. When `sharded` (ZeRO-1)
    every bucket is padded and cut into one piece per rank; a rank owns its piece of each bucket, and `owned` are those
    pieces. Otherwise every rank owns the whole buffer.
    """

    def __init__(self, parameters: Iterable[ModelParameter], group: Group = ALONE, sharded: bool = False) -> None:
        self.group, self.sharded = group, sharded and group.size > 1
        shards = group if self.sharded else ALONE
        self.parameters = list(reversed(list(parameters)))
        first = self.parameters[0]
        self.dtype = torch.promote_types(first.dtype, torch.float32)  # of gradients and master weights
        self.places, self.buckets, size = _layout(self.parameters, shards.size, self.dtype.itemsize)
        self.values = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(size, dtype=self.dtype, device=first.device)
        self.owned = [_piece(bucket.place, shards) for bucket in self.buckets] if self.sharded else [slice(0, size)]
        for parameter in self.parameters:
            self._adopt(parameter, self.places[parameter])

    def _adopt(self, parameter: ModelParameter, place: slice) -> None:
        values = self.values[place].view_as(parameter)
        values.copy_(parameter.detach())
        parameter.data = values
        parameter.main_grad = self.gradients[place].view_as(parameter)
        if parameter.dtype == self.dtype:
            parameter.grad = parameter.main_grad
        else:
            parameter.register_post_accumulate_grad_hook(_to_main_gradient)

    @property
    def decay(self) -> bool:
        """Whether weight decay applies to these parameters."""
        return self.parameters[0].spec.decay

    def owned_gradients(self, wanted: Callable[[Described], bool]) -> list[torch.Tensor]:
        """Flat views of the gradients of the parameters wanted, as far as this rank owns them."""
        views = []
        for parameter in filter(wanted, self.parameters):
            place = self.places[parameter]
            for piece in self.owned:
                start, stop = max(place.start, piece.start), min(place.stop, piece.stop)
                if start < stop:
                    views.append(self.gradients[start:stop])
        return views


def _to_main_gradient(parameter: torch.Tensor) -> None:
    assert isinstance(parameter, ModelParameter)
    if parameter.grad is not None:  # or else it has been added already
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None


def _layout(
    parameters: list[ModelParameter], shards: int, itemsize: int
) -> tuple[dict[ModelParameter, slice], list[Bucket], int]:
    """Where each parameter lies, the buckets, and the size; every bucket is a multiple of `shards` elements."""
    places: dict[ModelParameter, slice] = {}
    buckets: list[Bucket] = []
    members: list[ModelParameter] = []
    start = end = 0
    for parameter in parameters:
        places[parameter] = slice(end, end + parameter.numel())
        members.append(parameter)
        end += parameter.numel()
        if (end - start) * itemsize >= BUCKET_BYTES or parameter is parameters[-1]:
            end = start + -(-(end - start) // shards) * shards
            buckets.append(Bucket(tuple(members), slice(start, end)))
            members, start = [], end
    return places, buckets, end


def _piece(place: slice, shards: Group) -> slice:
    length = (place.stop - place.start) // shards.size
    start = place.start + shards.index * length
    return slice(start, start + length)


def flatten(parameters: Iterable[ModelParameter], group: Group = ALONE, sharded: bool = False) -> list[FlatBuffer]:
    """Buffers for a stage's parameters: those with weight decay, those without, and a tied embedding by itself.

    The two ranks that hold a tied embedding so have its gradients in the same layout, whatever else they hold.
    """
    kinds: dict[tuple[bool, bool], list[ModelParameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.spec.decay, parameter.spec.tied), []).append(parameter)
    return [FlatBuffer(members, group, sharded) for _, members in sorted(kinds.items(), reverse=True)]
