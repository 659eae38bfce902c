"""Causal attention of one rank's heads, from queries, keys and values [b, heads, s, d]."""

import math
from collections.abc import Callable

import torch as _torch

DropProbabilities = Callable[[_torch.Tensor], _torch.Tensor]


def reference(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, dropout: DropProbabilities | None) -> _torch.Tensor:
    """softmax(q k^T / sqrt(d), causally masked) v by batched matrix products, as the paper did it."""
    s = q.shape[-2]
    scores = _torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-1, -2))
    future = _torch.ones(s, s, dtype=_torch.bool, device=q.device).triu(1)
    probabilities = scores.masked_fill(future, -_torch.inf).softmax(dim=-1)
    if dropout is not None:
        probabilities = dropout(probabilities)
    return _torch.matmul(probabilities, v)


def torch(q: _torch.Tensor, k: _torch.Tensor, v: _torch.Tensor, dropout: DropProbabilities | None) -> _torch.Tensor:
    """The same by torch's fused kernel; with dropout by the reference, whose masks do not depend on the layout."""
    if dropout is not None:
        return reference(q, k, v, dropout)
    return _torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
