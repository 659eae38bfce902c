"""Scale, causal mask and softmax of attention scores [..., s, s]; row i sees columns 0 to i (paper section 4.2)."""

from typing import Any

import torch as _torch
from torch.autograd.function import once_differentiable as _once_differentiable


def reference(scores: _torch.Tensor, scale: float) -> _torch.Tensor:
    """Each step by itself."""
    return scaled(scores, scale).masked_fill(_future(scores), -_torch.inf).softmax(dim=-1)


def scaled(scores: _torch.Tensor, scale: float) -> _torch.Tensor:
    """The product, where it is one: attention's own batched product has already scaled the scores."""
    return scores if scale == 1.0 else scores * scale


def _future(scores: _torch.Tensor) -> _torch.Tensor:
    s = scores.shape[-1]
    return _torch.ones(s, s, dtype=_torch.bool, device=scores.device).triu(1)


class _ScaledSoftmax(_torch.autograd.Function):
    """Softmax of masked, scaled scores, of which only the probabilities are kept."""

    @staticmethod
    def forward(ctx: Any, scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
        ctx.scale = scale
        probabilities = scaled(scores, scale).masked_fill(hidden, -_torch.inf).softmax(dim=-1)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: _torch.Tensor) -> tuple[_torch.Tensor, None, None]:
        (probabilities,) = ctx.saved_tensors
        found: _torch.Tensor = _torch._softmax_backward_data(grad, probabilities, -1, probabilities.dtype)
        return scaled(found, ctx.scale), None, None


def masked(scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
    """softmax(scale * scores), where `hidden` is false, by torch's operators."""
    probabilities: _torch.Tensor = _ScaledSoftmax.apply(scores, hidden, scale)
    return probabilities


def torch(scores: _torch.Tensor, scale: float) -> _torch.Tensor:
    """By torch's softmax, keeping only its result; torch has no form of all three."""
    return masked(scores, _future(scores), scale)


def triton(scores: _torch.Tensor, scale: float) -> _torch.Tensor:
    """In one pass, which reads no score of the future."""
    from suite.kernels.softmax_triton import masked

    return masked(scores, None, scale)


def apex(scores: _torch.Tensor, scale: float) -> _torch.Tensor:
    """By apex's scaled_upper_triang_masked_softmax: 16 bits, s and the number of matrices multiples of 4."""
    from apex.transformer.functional.fused_softmax import ScaledUpperTriangMaskedSoftmax

    blocks = scores.reshape(-1, *scores.shape[-2:])
    probabilities: _torch.Tensor = ScaledUpperTriangMaskedSoftmax.apply(blocks, scale)
    return probabilities.view(scores.shape)
