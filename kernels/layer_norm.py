"""Layer normalisation over the last dimension: weight * (x - mean) / sqrt(variance + eps) + bias; x [..., h]."""

import torch as _torch


def reference(x: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> _torch.Tensor:
    """With the biased variance."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred * _torch.rsqrt(variance + eps) * weight + bias


def torch(x: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> _torch.Tensor:
    """By torch's fused operator."""
    return _torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def triton(x: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> _torch.Tensor:
    """A row per program forward; backward reads input and gradient once, and sums the weights' gradients as it goes."""
    from suite.kernels.layer_norm_triton import normalised

    return normalised(x, None, weight, bias, eps)[0]


def apex(x: _torch.Tensor, weight: _torch.Tensor, bias: _torch.Tensor, eps: float) -> _torch.Tensor:
    """By apex's fused layer norm, the paper's."""
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    normed: _torch.Tensor = fused_layer_norm_affine(x, weight, bias, (x.shape[-1],), eps)
    return normed
