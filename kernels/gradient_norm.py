"""The sum of squares of all elements of flat tensors, as one fp64 number on their device."""

from collections.abc import Sequence

import torch as _torch


def reference(tensors: Sequence[_torch.Tensor]) -> _torch.Tensor:
    """Each widened, squared and summed."""
    return _torch.stack([tensor.double().square().sum() for tensor in tensors]).sum()


def torch(tensors: Sequence[_torch.Tensor]) -> _torch.Tensor:
    """From norms on a GPU, of all tensors in one launch; on a processor from dot products, which are faster there."""
    if tensors[0].is_cuda:
        return _torch.stack(_torch._foreach_norm(list(tensors))).double().square().sum()
    return _torch.stack([_torch.dot(tensor, tensor) for tensor in tensors]).sum(dtype=_torch.float64)


def triton(tensors: Sequence[_torch.Tensor]) -> _torch.Tensor:
    """Partial sums of each tensor, in one pass; the same bits in every run."""
    from suite.kernels.flat_triton import sum_of_squares

    return sum_of_squares(tensors)


def apex(tensors: Sequence[_torch.Tensor]) -> _torch.Tensor:
    """By apex's multi_tensor_l2norm."""
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    overflow = _torch.zeros(1, dtype=_torch.int32, device=tensors[0].device)
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [list(tensors)], False)
    square: _torch.Tensor = norm.double().square().sum()
    return square
