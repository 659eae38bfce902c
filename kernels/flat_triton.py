"""What runs over flat buffers: AdamW, the sum of squares, and a product in place."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from suite.kernels.adamw import Hyperparameters
from suite.kernels.triton_types import accumulator, contiguous, warps_for

BLOCK = 1024
_PARTS = 512  # of a tensor's sum of squares


@triton.jit
def adam_kernel(
    values_ptr,
    gradients_ptr,
    first_ptr,
    second_ptr,
    size,
    kept,  # 1 - learning rate * weight decay
    beta1,
    beta2,
    other1,  # 1 - beta1
    other2,  # 1 - beta2
    rate,  # learning rate over the first moment's bias
    root,  # square root of the second moment's bias
    eps,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block: 4 reads and 3 writes of an element."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    gradient = tl.load(gradients_ptr + offsets, mask=inside, other=0.0).to(ACC)
    first = tl.load(first_ptr + offsets, mask=inside, other=0.0).to(ACC) * beta1 + gradient * other1
    second = tl.load(second_ptr + offsets, mask=inside, other=0.0).to(ACC) * beta2 + gradient * gradient * other2
    values = tl.load(values_ptr + offsets, mask=inside, other=0.0).to(ACC) * kept
    values -= rate * first / (tl.sqrt(second) / root + eps)
    tl.store(values_ptr + offsets, values, mask=inside)
    tl.store(first_ptr + offsets, first, mask=inside)
    tl.store(second_ptr + offsets, second, mask=inside)


@triton.jit
def square_kernel(x_ptr, parts_ptr, size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """One part of the sum: every so many blocks."""
    total = tl.zeros((BLOCK,), dtype=ACC)
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        offsets = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < size, other=0.0).to(ACC)
        total += x * x
    tl.store(parts_ptr + tl.program_id(0), tl.sum(total.to(tl.float64), axis=0))


@triton.jit
def multiply_kernel(x_ptr, size, factor, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """One block."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(ACC)
    tl.store(x_ptr + offsets, x * factor, mask=inside)


def adam_step(
    values: torch.Tensor,
    gradients: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    step: int,
    h: Hyperparameters,
) -> None:
    """AdamW of one flat buffer, in place."""
    contiguous(values=values, gradients=gradients, first=first, second=second)
    beta1, beta2 = h.betas
    adam_kernel[(triton.cdiv(values.numel(), BLOCK),)](
        values,
        gradients,
        first,
        second,
        values.numel(),
        1 - h.learning_rate * h.weight_decay,
        beta1,
        beta2,
        1 - beta1,
        1 - beta2,
        h.learning_rate / (1 - beta1**step),
        (1 - beta2**step) ** 0.5,
        h.eps,
        ACC=accumulator(values.dtype),
        BLOCK=BLOCK,
        num_warps=warps_for(BLOCK),
    )


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Over all tensors, fp64."""
    found = []
    for tensor in tensors:
        contiguous(tensor=tensor)
        programs = min(_PARTS, triton.cdiv(tensor.numel(), BLOCK))
        parts = torch.empty(programs, dtype=torch.float64, device=tensor.device)
        launch = {"ACC": accumulator(tensor.dtype), "BLOCK": BLOCK, "num_warps": warps_for(BLOCK)}
        square_kernel[(programs,)](tensor, parts, tensor.numel(), **launch)
        found.append(parts.sum())
    return torch.stack(found).sum()


def multiply(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Every tensor times one number, in place."""
    for tensor in tensors:
        contiguous(tensor=tensor)
        launch = {"ACC": accumulator(tensor.dtype), "BLOCK": BLOCK, "num_warps": warps_for(BLOCK)}
        multiply_kernel[(triton.cdiv(tensor.numel(), BLOCK),)](tensor, tensor.numel(), factor, **launch)
