"""Cross entropy over logits [..., V/t] whose last dimension is split over ranks, summed over tokens.

This rank has the columns from `first` on, of which `real` are no padding; `targets` [...] are numbers in the whole
vocabulary. `largest` and `total` combine a tensor over the ranks, and may overwrite it; they are None where this rank
has the whole vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch as _torch
from torch.autograd.function import once_differentiable as _once_differentiable

Combine = Callable[[_torch.Tensor], _torch.Tensor]


def _places(targets: _torch.Tensor, first: int, width: int) -> tuple[_torch.Tensor, _torch.Tensor]:
    """The targets as columns here, and which of them are another rank's."""
    wanted = targets - first
    local = wanted.clamp(0, width - 1)
    return local, local != wanted


def _unpadded(logits: _torch.Tensor, real: int) -> _torch.Tensor:
    """The padding as low as it can be, and finite: there may be nothing else on a rank."""
    if real < logits.shape[-1]:
        logits = logits.clone()
        logits[..., real:] = _torch.finfo(logits.dtype).min
    return logits


def _denominator(logits: _torch.Tensor, softmax: _torch.Tensor) -> _torch.Tensor:
    """The logarithm of the softmax's denominator, from its largest value, which is that of the largest logit."""
    return logits.amax(dim=-1).to(softmax.dtype) - softmax.amax(dim=-1).log()


class _Reference(_torch.autograd.Function):
    """One step after another, in at least fp32."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: _torch.Tensor,
        targets: _torch.Tensor,
        first: int,
        real: int,
        largest: Combine,
        total: Combine,
    ) -> _torch.Tensor:
        local, elsewhere = _places(targets, first, logits.shape[-1])
        wide = logits.to(_torch.promote_types(logits.dtype, _torch.float32))
        padding = _torch.arange(logits.shape[-1], device=logits.device) >= real
        wide = wide.masked_fill(padding, -_torch.inf)
        shifted = wide - largest(wide.amax(dim=-1)).unsqueeze(-1)
        chosen = total(shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0))
        exponentials = shifted.exp()
        denominator = total(exponentials.sum(dim=-1))
        probability = exponentials / denominator.unsqueeze(-1)
        ctx.save_for_backward(probability, local, elsewhere)
        ctx.dtype = logits.dtype
        return (denominator.log() - chosen).sum()

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: _torch.Tensor) -> tuple[_torch.Tensor | None, ...]:
        probability, local, elsewhere = ctx.saved_tensors
        hit = _torch.zeros_like(probability).scatter_(-1, local.unsqueeze(-1), 1.0)
        hit = hit.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return ((probability - hit) * grad).to(ctx.dtype), None, None, None, None, None


class _Softmax(_torch.autograd.Function):
    """By torch's softmax over this rank's columns, which the backward pass brings to the whole vocabulary's."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: _torch.Tensor,
        targets: _torch.Tensor,
        first: int,
        real: int,
        largest: Combine,
        total: Combine,
    ) -> _torch.Tensor:
        local, elsewhere = _places(targets, first, logits.shape[-1])
        wide, ctx.dtype = _torch.promote_types(logits.dtype, _torch.float32), logits.dtype
        logits = _unpadded(logits, real)
        probability = logits.softmax(dim=-1, dtype=wide)
        denominator = _denominator(logits, probability)
        highest = largest(denominator.clone())
        share = (denominator - highest).exp()
        picked = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).to(wide) - highest
        shares, chosen = total(_torch.stack([share, picked.masked_fill(elsewhere, 0.0)]))
        ctx.save_for_backward(probability, local, elsewhere, share / shares)
        return (shares.log() - chosen).sum()

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: _torch.Tensor) -> tuple[_torch.Tensor | None, ...]:
        probability, local, elsewhere, share = ctx.saved_tensors
        probability *= (share * grad).unsqueeze(-1)
        hit = grad.expand(elsewhere.shape).masked_fill(elsewhere, 0.0).to(probability.dtype)
        probability.scatter_add_(-1, local.unsqueeze(-1), -hit.unsqueeze(-1))
        return probability.to(ctx.dtype), None, None, None, None, None


class _Whole(_torch.autograd.Function):
    """The same where this rank has the whole vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: _torch.Tensor, targets: _torch.Tensor, real: int) -> _torch.Tensor:
        ctx.dtype = logits.dtype
        wide = _torch.promote_types(logits.dtype, _torch.float32)
        logits, places = _unpadded(logits, real), targets.unsqueeze(-1)
        probability = logits.softmax(dim=-1, dtype=wide)
        ctx.save_for_backward(probability, places)
        return (_denominator(logits, probability) - logits.gather(-1, places).squeeze(-1)).sum()

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: _torch.Tensor) -> tuple[_torch.Tensor | None, ...]:
        probability, places = ctx.saved_tensors
        probability *= grad
        probability.scatter_add_(-1, places, -grad.expand(places.shape).to(probability.dtype))
        return probability.to(ctx.dtype), None, None


def reference(
    logits: _torch.Tensor,
    targets: _torch.Tensor,
    first: int,
    real: int,
    largest: Combine | None = None,
    total: Combine | None = None,
) -> _torch.Tensor:
    """Each step by itself."""
    return _Reference.apply(logits, targets, first, real, largest or _itself, total or _itself)


def torch(
    logits: _torch.Tensor,
    targets: _torch.Tensor,
    first: int,
    real: int,
    largest: Combine | None = None,
    total: Combine | None = None,
) -> _torch.Tensor:
    """By torch's softmax, and in place after it; torch has no form for a split vocabulary."""
    if largest is None or total is None:
        return _Whole.apply(logits, targets, real)
    return _Softmax.apply(logits, targets, first, real, largest, total)


def triton(
    logits: _torch.Tensor,
    targets: _torch.Tensor,
    first: int,
    real: int,
    largest: Combine | None = None,
    total: Combine | None = None,
) -> _torch.Tensor:
    """One pass over the logits forward and one backward; probabilities are made again instead of being kept."""
    from suite.kernels.cross_entropy_triton import summed

    return summed(logits, targets, first, real, largest or _itself, total or _itself)


def _itself(tensor: _torch.Tensor) -> _torch.Tensor:
    return tensor
