"""Causal attention of one rank's heads: softmax(q k^T / sqrt(d), causally masked) v, from q, k, v [b, heads, s, d].

The three are views of one sequence-first tensor [s, b, heads, 3, d], which batched products take as they are. `mask`
has a block for each head of each sequence, and drops probabilities; None drops nothing.
"""

import math
from collections.abc import Callable

import torch as _torch

import suite.kernels.causal_softmax as _softmax
from suite.kernels.dropout_mask import DropoutMask, dropped

_Drop = Callable[[_torch.Tensor, DropoutMask], _torch.Tensor]


def _batched(
    q: _torch.Tensor,
    k: _torch.Tensor,
    v: _torch.Tensor,
    mask: DropoutMask | None,
    softmax: Callable[[_torch.Tensor, float], _torch.Tensor],
    drop: _Drop,
) -> _torch.Tensor:
    """Two batched products with a softmax between them, as the paper did it; the first scales, lest fp16 overflow."""
    unread = q.new_empty(1, 1, 1)
    products = (q.flatten(0, 1), k.flatten(0, 1).transpose(-1, -2))
    scores = _torch.baddbmm(unread, *products, beta=0.0, alpha=1.0 / math.sqrt(q.shape[-1]))
    probabilities = softmax(scores.view(*q.shape[:-1], k.shape[-2]), 1.0)
    if mask is not None:
        probabilities = drop(probabilities, mask)
    return _torch.matmul(probabilities, v)


def reference(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """Batched products and each step between them by itself."""
    return _batched(q, k, v, mask, _softmax.reference, dropped)


def torch(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """By torch's fused operator; with dropout, whose masks it cannot be given, by batched products."""
    if mask is not None:
        return _batched(q, k, v, mask, _softmax.torch, dropped)
    return _torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def triton(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """Batched products with the fused softmax and a dropout that draws its mask itself."""
    from suite.kernels.dropout_mask_triton import dropped as drawn

    return _batched(q, k, v, mask, _softmax.triton, drawn)


def apex(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """Batched products with apex's fused softmax, the paper's; its limits are `causal_softmax.apex`'s."""
    return _batched(q, k, v, mask, _softmax.apex, dropped)
