"""AdamW's update (Loshchilov and Hutter 2019) of one flat buffer, in place.

All tensors have one shape; `step` counts from 1. No learning-rate schedule, no amsgrad.
"""

import math
from typing import NamedTuple

import torch as _torch


class Hyperparameters(NamedTuple):
    """The optimizer's constants."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


def reference(
    values: _torch.Tensor,
    gradients: _torch.Tensor,
    first: _torch.Tensor,
    second: _torch.Tensor,
    step: int,
    h: Hyperparameters,
) -> None:
    """Decoupled decay, then the bias-corrected moment estimates' quotient."""
    beta1, beta2 = h.betas
    values.mul_(1 - h.learning_rate * h.weight_decay)
    first.mul_(beta1).add_(gradients, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
    denominator = second.sqrt().div_(math.sqrt(1 - beta2**step)).add_(h.eps)
    values.addcdiv_(first, denominator, value=-h.learning_rate / (1 - beta1**step))


def torch(
    values: _torch.Tensor,
    gradients: _torch.Tensor,
    first: _torch.Tensor,
    second: _torch.Tensor,
    step: int,
    h: Hyperparameters,
) -> None:
    """The same in one pass, by the operator behind torch's fused AdamW."""
    # torch.optim.AdamW itself would import the whole compiler, seconds per rank, to call this operator.
    _torch._fused_adamw_(
        [values],
        [gradients],
        [first],
        [second],
        [],
        [_torch.tensor(float(step), device=values.device)],
        amsgrad=False,
        lr=h.learning_rate,
        beta1=h.betas[0],
        beta2=h.betas[1],
        weight_decay=h.weight_decay,
        eps=h.eps,
        maximize=False,
    )


def triton(
    values: _torch.Tensor,
    gradients: _torch.Tensor,
    first: _torch.Tensor,
    second: _torch.Tensor,
    step: int,
    h: Hyperparameters,
) -> None:
    """The same in one pass."""
    from suite.kernels.flat_triton import adam_step

    adam_step(values, gradients, first, second, step, h)


def apex(
    values: _torch.Tensor,
    gradients: _torch.Tensor,
    first: _torch.Tensor,
    second: _torch.Tensor,
    step: int,
    h: Hyperparameters,
) -> None:
    """By apex's multi_tensor_adam, which its FusedAdam calls."""
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    decoupled, correct_bias = 1, 1
    multi_tensor_applier(
        amp_C.multi_tensor_adam,
        _torch.zeros(1, dtype=_torch.int32, device=values.device),
        [[gradients], [values], [first], [second]],
        h.learning_rate,
        *h.betas,
        h.eps,
        step,
        decoupled,
        correct_bias,
        h.weight_decay,
    )
