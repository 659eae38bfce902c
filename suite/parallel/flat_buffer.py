"""Parameters and gradients of a stage in flat buffers: one tensor to reduce, to clip and to update."""

from collections.abc import Iterable

import torch

from suite.parallel.parameters import ModelParameter


class FlatBuffer:
    """Parameters whose values and gradients are views of two flat tensors.

    The parameters lie in the reverse of the order given, which is about the order in which the backward pass
    finishes them, so that a bucket is a slice whose gradients are ready at about the same time.
    """

    def __init__(self, parameters: Iterable[ModelParameter]) -> None:
        self.parameters = list(reversed(list(parameters)))
        self.offsets = []
        size = 0
        for parameter in self.parameters:
            self.offsets.append(size)
            size += parameter.numel()
        first = self.parameters[0]
        self.values = torch.empty(size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.values)
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            place = slice(offset, offset + parameter.numel())
            self.values[place].view_as(parameter).copy_(parameter.detach())
            parameter.data = self.values[place].view_as(parameter)
            parameter.grad = self.gradients[place].view_as(parameter)

    @property
    def decay(self) -> bool:
        """Whether weight decay applies to these parameters."""
        return self.parameters[0].spec.decay

    def buckets(self, elements: int) -> list[tuple[list[ModelParameter], torch.Tensor]]:
        """Slices of the gradients of about `elements` elements, each with the parameters it holds whole."""
        result: list[tuple[list[ModelParameter], torch.Tensor]] = []
        members: list[ModelParameter] = []
        start = 0
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            members.append(parameter)
            end = offset + parameter.numel()
            if end - start >= elements or parameter is self.parameters[-1]:
                result.append((members, self.gradients[start:end]))
                members, start = [], end
        return result


def flatten(parameters: Iterable[ModelParameter]) -> list[FlatBuffer]:
    """Buffers for a stage's parameters: those with weight decay, those without."""
    listed = list(parameters)
    groups = [[p for p in listed if p.spec.decay == decay] for decay in (True, False)]
    return [FlatBuffer(group) for group in groups if group]
