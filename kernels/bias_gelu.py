"""Bias and GELU in its tanh form, as GPT-2 and the paper's fused kernel have it (section 4.2)."""

import math

import torch as _torch


def reference(x: _torch.Tensor, bias: _torch.Tensor) -> _torch.Tensor:
    """y = x + bias; y/2 (1 + tanh(sqrt(2/pi) (y + 0.044715 y^3))); x [..., f], bias [f]."""
    y = x + bias
    return 0.5 * y * (1.0 + _torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y.pow(3))))


def torch(x: _torch.Tensor, bias: _torch.Tensor) -> _torch.Tensor:
    """The same with torch's own GELU."""
    return _torch.nn.functional.gelu(x + bias, approximate="tanh")
