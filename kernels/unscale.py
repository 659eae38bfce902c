"""Flat tensors of gradients multiplied in place by one number: the loss scale taken out and the norm clipped."""

from collections.abc import Sequence

import torch as _torch


def reference(tensors: Sequence[_torch.Tensor], factor: float) -> None:
    """A product that is copied back."""
    for tensor in tensors:
        tensor.copy_(tensor * factor)


def torch(tensors: list[_torch.Tensor], factor: float) -> None:
    """In place, all tensors in one launch on a GPU."""
    _torch._foreach_mul_(tensors, factor)


def triton(tensors: Sequence[_torch.Tensor], factor: float) -> None:
    """In place, tensor by tensor."""
    from suite.kernels.flat_triton import multiply

    multiply(tensors, factor)


def apex(tensors: Sequence[_torch.Tensor], factor: float) -> None:
    """By apex's multi_tensor_scale."""
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    overflow = _torch.zeros(1, dtype=_torch.int32, device=tensors[0].device)
    multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [list(tensors), list(tensors)], factor)
