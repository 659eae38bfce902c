"""Bias and GELU in its tanh form, as GPT-2 and the paper's fused kernel have it (section 4.2); x [..., f], bias [f]."""

import math

import torch as _torch


def reference(x: _torch.Tensor, bias: _torch.Tensor) -> _torch.Tensor:
    """y = x + bias; y/2 (1 + tanh(sqrt(2/pi) (y + 0.044715 y^3)))."""
    y = x + bias
    return 0.5 * y * (1.0 + _torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y.pow(3))))


def torch(x: _torch.Tensor, bias: _torch.Tensor) -> _torch.Tensor:
    """The same with torch's own GELU."""
    return _torch.nn.functional.gelu(x + bias, approximate="tanh")


def triton(x: _torch.Tensor, bias: _torch.Tensor) -> _torch.Tensor:
    """In one pass; backward adds the bias again instead of keeping the sum, and sums the bias's gradient as it goes."""
    from suite.kernels.bias_gelu_triton import biased_gelu

    return biased_gelu(x, bias)
