"""Activation recomputation (paper section 3.5): keep a part's inputs, run it again before its backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class _Recompute(torch.autograd.Function):
    """Runs without a graph forward; builds the graph from the kept inputs backward, and goes through it.

    torch.utils.checkpoint does the same for any function, and imports the whole compiler, seconds per rank, at
    its first call. Masks need no random state here: they depend on nothing that a second run could change.
    """

    @staticmethod
    def forward(ctx: Any, part: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.part = part
        ctx.save_for_backward(*inputs)
        return part(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = [kept.detach().requires_grad_() for kept in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.part(*inputs)
        torch.autograd.backward(output, grad)
        return None, *(kept.grad for kept in inputs)


def recomputed(part: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """`part(*inputs)`, of which only the inputs are kept for the backward pass.

    The gradients of parameters inside `part` are accumulated while its backward pass runs.
    """
    return _Recompute.apply(part, *inputs)
