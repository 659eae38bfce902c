"""Residual sum and the layer norm of it, which both go on: (norm(x + residual), x + residual); x [..., h]."""

import torch as _torch

import suite.kernels.layer_norm as _layer_norm

Both = tuple[_torch.Tensor, _torch.Tensor]


def reference(
    x: _torch.Tensor, residual: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float
) -> Both:
    """One after the other."""
    total = x + residual
    return _layer_norm.reference(total, weight, bias, eps), total


def torch(x: _torch.Tensor, residual: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> Both:
    """The same with torch's fused norm; torch has no form of both."""
    total = x + residual
    return _layer_norm.torch(total, weight, bias, eps), total


def triton(x: _torch.Tensor, residual: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> Both:
    """In one pass: the sum is written and not read again."""
    from suite.kernels.layer_norm_triton import normalised

    return normalised(x, residual, weight, bias, eps)
