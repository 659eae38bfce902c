"""Scale, mask and softmax of attention scores [b, heads, s, t].

`hidden` bool [b, 1, s, t] is true where nothing is seen. Every row has to see at least one column.
"""

import torch as _torch

from suite.kernels.causal_softmax import masked, scaled


def reference(scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
    """Each step by itself."""
    return scaled(scores, scale).masked_fill(hidden, -_torch.inf).softmax(dim=-1)


def torch(scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
    """By torch's softmax, keeping only its result; torch has no form of all three."""
    return masked(scores, hidden, scale)


def triton(scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
    """In one pass."""
    from suite.kernels.softmax_triton import masked

    return masked(scores, hidden, scale)


def apex(scores: _torch.Tensor, hidden: _torch.Tensor, scale: float) -> _torch.Tensor:
    """By apex's scaled_masked_softmax: 16 bits, s a multiple of 4."""
    from apex.transformer.functional.fused_softmax import ScaledMaskedSoftmax

    probabilities: _torch.Tensor = ScaledMaskedSoftmax.apply(scores, hidden.contiguous(), scale)
    return probabilities
