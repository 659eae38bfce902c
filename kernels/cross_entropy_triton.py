"""Cross entropy over a split vocabulary: one pass over the logits forward, one backward, probabilities never kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.cross_entropy import Combine
from suite.kernels.triton_types import accumulator, contiguous, warps_for

BLOCK = 2048  # columns that a program reads at a time


@triton.jit
def forward_kernel(
    logits_ptr,
    targets_ptr,
    largest_ptr,
    sum_ptr,
    chosen_ptr,
    width,
    real,
    first,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: its largest logit, the sum of exponentials below it, and the target's logit (0 if it is elsewhere)."""
    number = tl.program_id(0)
    row = tl.cast(number, tl.int64) * width
    columns = tl.arange(0, BLOCK)
    lowest = tl.full((BLOCK,), -3.0e38, dtype=ACC)  # finite, so that differences are
    largest = lowest
    total = tl.zeros((BLOCK,), dtype=ACC)
    for start in range(0, real, BLOCK):
        inside = start + columns < real
        x = tl.load(logits_ptr + row + start + columns, mask=inside, other=0.0).to(ACC)
        x = tl.where(inside, x, lowest)
        higher = tl.maximum(largest, x)
        total = tl.where(inside, total * tl.exp(largest - higher) + tl.exp(x - higher), total)
        largest = higher
    top = tl.max(largest, axis=0)
    tl.store(largest_ptr + number, top)
    tl.store(sum_ptr + number, tl.sum(total * tl.exp(largest - top), axis=0))
    local = tl.load(targets_ptr + number) - first
    here = (local >= 0) & (local < width)
    tl.store(chosen_ptr + number, tl.load(logits_ptr + row + local, mask=here, other=0.0).to(ACC))


@triton.jit
def backward_kernel(
    logits_ptr,
    targets_ptr,
    largest_ptr,
    sum_ptr,
    grad_ptr,
    grad_logits_ptr,
    width,
    real,
    first,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some columns of one row: probability less one at the target, times the loss's gradient."""
    number = tl.program_id(0)
    row = tl.cast(number, tl.int64) * width
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row + columns, mask=columns < real, other=-float("inf")).to(ACC)
    probability = tl.exp(x - tl.load(largest_ptr + number)) / tl.load(sum_ptr + number)
    hit = columns == tl.load(targets_ptr + number) - first
    grad = (probability - tl.where(hit, 1.0, 0.0)) * tl.load(grad_ptr).to(ACC)
    tl.store(grad_logits_ptr + row + columns, grad, mask=columns < width)


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits, and two numbers a token."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        first: int,
        real: int,
        largest: Combine,
        total: Combine,
    ) -> torch.Tensor:
        contiguous(logits=logits)
        width, rows = logits.shape[-1], targets.numel()
        targets = targets.contiguous()
        wide = torch.promote_types(logits.dtype, torch.float32)
        found = torch.empty(3, rows, dtype=wide, device=logits.device)
        forward_kernel[(rows,)](
            logits,
            targets,
            *found,
            width,
            real,
            first,
            ACC=accumulator(logits.dtype),
            BLOCK=BLOCK,
            num_warps=warps_for(BLOCK),
        )
        top = largest(found[0].clone())
        here = (targets.flatten() >= first) & (targets.flatten() < first + width)
        sums = torch.stack([found[1] * (found[0] - top).exp(), (found[2] - top).where(here, 0.0)])
        denominator, chosen = total(sums)
        ctx.save_for_backward(logits, targets, top, denominator)
        ctx.first, ctx.real = first, real
        return (denominator.log() - chosen).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, targets, top, denominator = ctx.saved_tensors
        width, grad_logits = logits.shape[-1], torch.empty_like(logits)
        backward_kernel[targets.numel(), triton.cdiv(width, BLOCK)](
            logits,
            targets,
            top,
            denominator,
            grad,
            grad_logits,
            width,
            ctx.real,
            ctx.first,
            ACC=accumulator(logits.dtype),
            BLOCK=BLOCK,
            num_warps=warps_for(BLOCK),
        )
        return grad_logits, None, None, None, None, None


def summed(
    logits: torch.Tensor, targets: torch.Tensor, first: int, real: int, largest: Combine, total: Combine
) -> torch.Tensor:
    """The sum over tokens, as `cross_entropy` says."""
    return _CrossEntropy.apply(logits, targets, first, real, largest, total)
