"""Layer norm, with or without a residual sum before it, in one pass forward and one backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from suite.kernels.triton_types import PROGRAMS, accumulator, block_of, contiguous, warps_for


@triton.jit
def forward_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    total_ptr,
    mean_ptr,
    deviation_ptr,
    width,
    eps,
    RESIDUAL: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: its sum with the residual, mean, reciprocal deviation and norm."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(ACC)
    if RESIDUAL:
        x += tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        x = x.to(total_ptr.dtype.element_ty)  # the norm is that of what is written
        tl.store(total_ptr + row + columns, x, mask=inside)
        x = x.to(ACC)
    mean = tl.sum(x, axis=0) / width
    centred = tl.where(inside, x - mean, 0.0)
    deviation = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(ACC)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(ACC)
    tl.store(y_ptr + row + columns, centred * deviation * weight + bias, mask=inside)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(deviation_ptr + tl.program_id(0), deviation)


@triton.jit
def backward_kernel(
    x_ptr,
    weight_ptr,
    mean_ptr,
    deviation_ptr,
    grad_y_ptr,
    grad_total_ptr,
    grad_x_ptr,
    weight_parts_ptr,
    bias_parts_ptr,
    rows,
    width,
    RESIDUAL: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every so many rows: the input's gradient, and these rows' part of the gradients of weight and bias."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(ACC)
    weight_part = tl.zeros((BLOCK,), dtype=ACC)
    bias_part = tl.zeros((BLOCK,), dtype=ACC)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64) * width
        x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        grad = tl.load(grad_y_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        deviation = tl.load(deviation_ptr + number)
        normed = tl.where(inside, (x - tl.load(mean_ptr + number)) * deviation, 0.0)
        weighted = grad * weight
        along = tl.sum(weighted * normed, axis=0) / width
        grad_x = (weighted - tl.sum(weighted, axis=0) / width - normed * along) * deviation
        if RESIDUAL:
            grad_x += tl.load(grad_total_ptr + row + columns, mask=inside, other=0.0).to(ACC)
        tl.store(grad_x_ptr + row + columns, grad_x, mask=inside)
        weight_part += grad * normed
        bias_part += grad
    part = tl.program_id(0).to(tl.int64) * width
    tl.store(weight_parts_ptr + part + columns, weight_part, mask=inside)
    tl.store(bias_parts_ptr + part + columns, bias_part, mask=inside)


class _Norm(torch.autograd.Function):
    """Keeps the normed sum's input, and mean and reciprocal deviation of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        contiguous(x=x, residual=residual)
        width, rows = x.shape[-1], x.numel() // x.shape[-1]
        wide = torch.promote_types(x.dtype, torch.float32)
        y, total = torch.empty_like(x), x if residual is None else torch.empty_like(x)
        mean, deviation = (torch.empty(rows, dtype=wide, device=x.device) for _ in range(2))
        block = block_of(width)
        forward_kernel[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            bias,
            y,
            total,
            mean,
            deviation,
            width,
            eps,
            RESIDUAL=residual is not None,
            ACC=accumulator(x.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        ctx.save_for_backward(total, weight, mean, deviation)
        ctx.residual = residual is not None
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: torch.Tensor | None, grad_total: torch.Tensor | None) -> Any:
        total, weight, mean, deviation = ctx.saved_tensors
        if grad_y is None:
            return grad_total, grad_total, None, None, None
        grad_y = grad_y.contiguous()
        width, rows = total.shape[-1], mean.numel()
        programs, block = min(rows, PROGRAMS), block_of(width)
        parts = torch.empty(2, programs, width, dtype=mean.dtype, device=mean.device)
        grad_x = torch.empty_like(total)
        backward_kernel[(programs,)](
            total,
            weight,
            mean,
            deviation,
            grad_y,
            grad_y if grad_total is None else grad_total.contiguous(),
            grad_x,
            parts[0],
            parts[1],
            rows,
            width,
            RESIDUAL=grad_total is not None,
            ACC=accumulator(total.dtype),
            BLOCK=block,
            num_warps=warps_for(block),
        )
        grad_weight, grad_bias = parts.sum(1).to(weight.dtype)
        return grad_x, grad_x if ctx.residual else None, grad_weight, grad_bias, None


def normalised(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual), or (norm(x), x) without a residual; x [..., h]."""
    if residual is None:
        return _Norm.apply(x, None, weight, bias, eps)[0], x
    return _Norm.apply(x, residual, weight, bias, eps)
