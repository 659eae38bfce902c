"""Weight gradients, added straight to the main gradients: as they come, or when their turn comes.

A product adds to the main gradient itself, so that no gradient of the weight's size is made or read.

Qi et al. 2023 (arXiv:2401.10241, section 2) split a layer's backward: B hands the gradient on to the layer before, W
computes the weight's gradient, which nothing waits for. Here a layer computes its output with a detached weight, so
that autograd never computes the weight's gradient, and taps the output: when its gradient passes by, the tap hands over
what computes the weight's gradient from it. That is run at once in a whole backward, and kept until W in a split one.
What is kept is what the computation needs: the output's gradient and, for a product, its input.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from suite.parallel.parameters import ModelParameter

AddProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]  # the kernel: main, input, output's gradient
AddTo = Callable[[torch.Tensor, torch.Tensor], None]  # adds a gradient to the main one, from the output's gradient


class WeightGradients:
    """The weight gradients of one rank: which are computed at once, and which are kept for later."""

    def __init__(self, add_product: AddProduct, split: bool) -> None:
        """`add_product` is the chosen kernel; `split`: whether the schedule has backward passes in two parts."""
        self.add_product, self.split = add_product, split
        self.accumulated: Callable[[ModelParameter], None] = lambda parameter: None
        self.anchor = torch.empty(0, requires_grad=True)  # makes tapped outputs part of the graph
        self.kept: dict[Hashable, list[tuple[ModelParameter, AddTo, torch.Tensor]]] = {}
        self.keeping: Hashable | None = None

    def keep(self, key: Hashable | None) -> None:
        """Keep what is handed over from now on under `key`; None: compute at once."""
        self.keeping = key
        if key is not None:
            self.kept[key] = []

    def hand_over(self, parameter: ModelParameter, add: AddTo, grad: torch.Tensor) -> None:
        """Take what adds a parameter's gradient, and the output's gradient that it is computed from."""
        if self.keeping is None:
            self.add(parameter, add, grad)
        else:
            self.kept[self.keeping].append((parameter, add, grad))

    def compute(self, key: Hashable) -> None:
        """Compute and add the gradients kept under `key`; each is let go of as soon as it is added."""
        kept = self.kept.pop(key)
        kept.reverse()
        while kept:
            self.add(*kept.pop())

    def add(self, parameter: ModelParameter, add: AddTo, grad: torch.Tensor) -> None:
        """Add a parameter's gradient now."""
        add(parameter.main_grad, grad)
        self.accumulated(parameter)

    def add_weight(self, weight: ModelParameter, x: torch.Tensor, grad: torch.Tensor) -> None:
        """Add the gradient of a weight [out, in] now, from its product's input [..., in] and output's gradient."""
        self.add_product(weight.main_grad, x, grad)
        self.accumulated(weight)


class _Tap(torch.autograd.Function):
    """The identity; backward hands the gradient that passes by to the parameters that it decides."""

    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        anchor: torch.Tensor,
        gradients: WeightGradients,
        parameters: tuple[tuple[ModelParameter, AddTo], ...],
    ) -> torch.Tensor:
        ctx.gradients, ctx.parameters = gradients, parameters
        ctx.mark_dirty(output)  # not a view, so that what comes next may work in place
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        for parameter, add in ctx.parameters:
            ctx.gradients.hand_over(parameter, add, grad)
        ctx.parameters = ()
        return grad, None, None, None


def tap(output: torch.Tensor, gradients: WeightGradients, *parameters: tuple[ModelParameter, AddTo]) -> torch.Tensor:
    """`output`, from whose gradient each parameter's gradient is added by the given function.

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


def add_row_sum(main: torch.Tensor, grad: torch.Tensor) -> None:
    """Add a bias's gradient."""
    main.add_(row_sum(grad))
