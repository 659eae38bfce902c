"""Backward passes in two parts: input gradients first, weight gradients when their turn comes.

Qi et al. 2023 (arXiv:2401.10241, section 2) split a layer's backward: B hands the gradient on to the layer before, W
computes the weight's gradient, which nothing waits for. Here a layer computes its output with a detached weight, so
that autograd never computes the weight's gradient, and taps the output: when its gradient passes by, the tap hands over
what computes the weight's gradient from it. That is run at once in a whole backward, and kept until W in a split one.
What is kept is what the computation needs: the output's gradient and, for a product, its input.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from suite.parallel.parameters import ModelParameter

GradientOf = Callable[[torch.Tensor], torch.Tensor]  # from the output's gradient to the parameter's


class WeightGradients:
    """The weight gradients of one rank: which are computed at once, and which are kept for later."""

    def __init__(self) -> None:
        self.accumulated: Callable[[ModelParameter], None] = lambda parameter: None
        self.anchor = torch.empty(0, requires_grad=True)  # makes tapped outputs part of the graph
        self.kept: dict[Hashable, list[tuple[ModelParameter, Callable[[], torch.Tensor]]]] = {}
        self.keeping: Hashable | None = None

    def keep(self, key: Hashable | None) -> None:
        """Keep what is handed over from now on under `key`; None: compute at once."""
        self.keeping = key
        if key is not None:
            self.kept[key] = []

    def hand_over(self, parameter: ModelParameter, gradient: Callable[[], torch.Tensor]) -> None:
        """Take what computes a parameter's gradient."""
        if self.keeping is None:
            self._add(parameter, gradient)
        else:
            self.kept[self.keeping].append((parameter, gradient))

    def compute(self, key: Hashable) -> None:
        """Compute and add the gradients kept under `key`; each is let go of as soon as it is added."""
        kept = self.kept.pop(key)
        kept.reverse()
        while kept:
            self._add(*kept.pop())

    def _add(self, parameter: ModelParameter, gradient: Callable[[], torch.Tensor]) -> None:
        parameter.main_grad.add_(gradient())
        self.accumulated(parameter)


class _Tap(torch.autograd.Function):
    """The identity; backward hands the gradient that passes by to the parameters that it decides."""

    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        anchor: torch.Tensor,
        gradients: WeightGradients,
        parameters: tuple[tuple[ModelParameter, GradientOf], ...],
    ) -> torch.Tensor:
        ctx.gradients, ctx.parameters = gradients, parameters
        ctx.mark_dirty(output)  # not a view, so that what comes next may work in place
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        for parameter, gradient_of in ctx.parameters:
            ctx.gradients.hand_over(parameter, partial(gradient_of, grad))
        ctx.parameters = ()
        return grad, None, None, None


def tap(
    output: torch.Tensor, gradients: WeightGradients, *parameters: tuple[ModelParameter, GradientOf]
) -> torch.Tensor:
    """`output`, of whose gradient each parameter's gradient is the given function.

    Nothing may have saved `output` for its own backward pass.
    """
    if not torch.is_grad_enabled():
        return output
    return _Tap.apply(output, gradients.anchor, gradients, parameters)


def product_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The gradient [out, in] of a weight from its input x [..., in] and its output's gradient [..., out]."""
    return torch.matmul(grad.flatten(0, -2).t(), x.flatten(0, -2))


def row_sum(grad: torch.Tensor) -> torch.Tensor:
    """The gradient [n] of a bias [n] from its output's [..., n], summed in at least fp32."""
    return grad.flatten(0, -2).sum(0, dtype=torch.promote_types(grad.dtype, torch.float32))
