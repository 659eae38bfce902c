"""The actions of a program carried out on the model: forward, and backward whole or in two parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from suite.model.gpt import Microbatch
from suite.parallel.topology import StageKey
from suite.parallel.weight_gradients import WeightGradients
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action


@dataclass(frozen=True)
class _Live:
    """What a forward leaves for its backward: its input, and where its output hangs in the graph."""

    input: torch.Tensor | None
    output: GradientEdge


class ModelWorker:
    """The stages of one rank at work.

    Only the place of a stage's output in the autograd graph is kept, so that a sent activation's memory is free once it
    has arrived. Weight gradients are added to what is in the flat buffers.
    """

    def __init__(
        self,
        stages: Mapping[StageKey, nn.Module],
        last_stage: int,
        deferred: WeightGradients | None = None,
        final_backward: Callable[[StageKey], None] = lambda stage: None,
        reduce: Callable[[StageKey], None] = lambda stage: None,
    ) -> None:
        """`deferred` keeps weight gradients for W; it is None where the schedule splits no backward.

        `final_backward` is called before a stage's last action that adds to its gradients, `reduce` when the sum over
        its replicas may start.
        """
        self.stages, self.last_stage, self.deferred = stages, last_stage, deferred
        self.final_backward, self.start_reduction = final_backward, reduce
        self.live: dict[Action, _Live] = {}
        self.microbatch: Callable[[int], Microbatch] = _no_microbatch
        self.loss_scale = 1.0
        self.loss: torch.Tensor | None = None
        self.kinds = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            INPUT_GRADIENT: self._backward,
            WEIGHT_GRADIENT: self._weight_gradient,
        }

    def begin(self, microbatch: Callable[[int], Microbatch], loss_scale: float) -> None:
        """Start an iteration over these microbatches; every loss is multiplied by `loss_scale`."""
        self.microbatch, self.loss_scale = microbatch, loss_scale
        self.loss = None

    @property
    def total_loss(self) -> torch.Tensor:
        """The sum over microbatches of the loss times `loss_scale`; 0 where the last stage is elsewhere."""
        return torch.zeros(()) if self.loss is None else self.loss

    def run(self, action: Action, value: torch.Tensor | None, final: bool) -> torch.Tensor | None:
        """Carry out one action; see `suite.pipeline.engine.Worker`."""
        if final:
            self.final_backward((action.stage, action.replica))
        return self.kinds[action.kind](action, value)

    def reduce(self, action: Action) -> None:
        """Start to add up the stage's gradients over its replicas."""
        self.start_reduction((action.stage, action.replica))

    def _forward(self, action: Action, value: torch.Tensor | None) -> torch.Tensor | None:
        grad = torch.is_grad_enabled()
        if value is not None and grad:
            value = value.detach().requires_grad_()
        output = self.stages[action.stage, action.replica](value, self.microbatch(action.microbatch))
        if action.stage == self.last_stage:
            output = output * self.loss_scale
            loss = output.detach()
            self.loss = loss if self.loss is None else self.loss + loss
        if grad:
            self.live[action] = _Live(value, get_gradient_edge(output))
        return None if action.stage == self.last_stage else output.detach()

    def _backward(self, action: Action, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """BW, or B: the weight gradients are then kept under the forward's name."""
        forward = action._replace(kind=FORWARD)
        live = self.live.pop(forward)
        if self.deferred is not None:
            self.deferred.keep(forward if action.kind == INPUT_GRADIENT else None)
        torch.autograd.backward(live.output, gradient)
        return None if live.input is None else live.input.grad

    def _weight_gradient(self, action: Action, _: torch.Tensor | None) -> None:
        assert self.deferred is not None
        self.deferred.compute(action._replace(kind=FORWARD))


def _no_microbatch(index: int) -> Microbatch:
    raise RuntimeError(f"no iteration is running that could have a microbatch {index}")
