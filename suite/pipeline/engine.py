"""The engine: carries out one rank's lowered program. It knows actions and messages, but no schedule."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from suite.measure.clock import Clock
from suite.model.gpt import Microbatch
from suite.pipeline.lowering import Lowered, Message, Op
from suite.pipeline.program import BACKWARD, FORWARD, Action
from suite.pipeline.transport import Transport


@dataclass(frozen=True)
class Executed:
    """One action as it ran: its marks on the engine's clock."""

    action: Action
    start: int
    end: int


@dataclass(frozen=True)
class Waited:
    """The wait for one message: its marks on the engine's clock."""

    message: Message
    start: int
    end: int


@dataclass(frozen=True)
class _Live:
    """What a forward leaves for its backward: its input, and where its output hangs in the graph."""

    input: torch.Tensor | None
    output: GradientEdge


class Engine:
    """Runs the stages of one rank through a proved, lowered schedule.

    The output of a stage is a message, a value for a stage on the same rank, or on the last stage the loss. Only
    its place in the autograd graph is kept, so that a sent activation's memory is free once it has arrived.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, nn.Module],
        transport: Transport,
        clock: Clock,
        final_backward: Callable[[int], None],
        note: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`final_backward` is called with a stage's number before the last backward that adds to its gradients.

        `note` is told 2n when instruction n begins (and may have to wait), and 2n + 1 when an action has its input.
        """
        self.ops = lowered.ops[rank]
        self.inputs, self.dependencies = lowered.inputs, lowered.schedule.dependencies
        self.rank, self.stages, self.transport, self.clock = rank, stages, transport, clock
        self.final_backward, self.note = final_backward, note
        self.last_stage = lowered.schedule.virtual_stages - 1
        self.instructions = {
            "receive": self._receive,
            "run": self._run,
            "send": self._send,
            "settle": self._settle,
        }
        self.kinds = {FORWARD: self._forward, BACKWARD: self._backward}
        self.values: dict[Action, torch.Tensor] = {}  # outputs not yet consumed or sent, by their producer
        self.live: dict[Action, _Live] = {}
        self.microbatch: Callable[[int], Microbatch] = _no_microbatch
        self.loss_scale = 1.0
        self.loss: torch.Tensor | None = None
        self.executed: list[Executed] = []
        self.waited: list[Waited] = []

    def run(self, microbatch: Callable[[int], Microbatch], loss_scale: float) -> torch.Tensor:
        """One pass over all microbatches through the program; gradients are added to what is there.

        Returns the sum over microbatches of the loss times `loss_scale`; 0 where the last stage is elsewhere.
        `executed` then holds the actions as they ran, `waited` the waits for messages.
        """
        self.microbatch, self.loss_scale = microbatch, loss_scale
        self.loss = None
        self.executed, self.waited = [], []
        for index, op in enumerate(self.ops):
            self.note(2 * index)
            self.instructions[op.kind](op, index)
        return torch.zeros(()) if self.loss is None else self.loss

    def busy_seconds(self, marks: list[float]) -> dict[str, float]:
        """Time of the iteration's actions by kind, from the clock's marks."""
        busy: dict[str, float] = defaultdict(float)
        for executed in self.executed:
            busy[executed.action.kind] += marks[executed.end] - marks[executed.start]
        return dict(busy)

    def _receive(self, op: Op, index: int) -> None:
        assert op.message
        self.transport.receive(op.message)

    def _send(self, op: Op, index: int) -> None:
        assert op.message
        self.transport.send(op.message, self.values.pop(op.message.producer))

    def _settle(self, op: Op, index: int) -> None:
        assert op.message
        self.transport.settle(op.message)

    def _run(self, op: Op, index: int) -> None:
        action = op.action
        assert action
        value = self._input(action)
        self.note(2 * index + 1)
        if op.final:
            self.final_backward(action.stage)
        start = self.clock.mark()
        self.kinds[action.kind](action, value)
        self.executed.append(Executed(action, start, self.clock.mark()))

    def _input(self, action: Action) -> torch.Tensor | None:
        """The activation or gradient that the action consumes: a message, or a value of this rank."""
        message = self.inputs.get(action)
        if message is not None:
            start = self.clock.mark()
            value = self.transport.take(message)
            self.waited.append(Waited(message, start, self.clock.mark()))
            return value
        for producer in self.dependencies[action]:
            if producer.stage != action.stage:
                return self.values.pop(producer)
        return None

    def _forward(self, action: Action, value: torch.Tensor | None) -> None:
        if value is not None and torch.is_grad_enabled():
            value = value.detach().requires_grad_()
        output = self.stages[action.stage](value, self.microbatch(action.microbatch))
        if action.stage == self.last_stage:
            output = output * self.loss_scale
            loss = output.detach()
            self.loss = loss if self.loss is None else self.loss + loss
        else:
            self.values[action] = output.detach()
        if torch.is_grad_enabled():
            self.live[action] = _Live(value, get_gradient_edge(output))

    def _backward(self, action: Action, gradient: torch.Tensor | None) -> None:
        live = self.live.pop(action._replace(kind=FORWARD))
        torch.autograd.backward(live.output, gradient)
        if live.input is not None:
            assert live.input.grad is not None
            self.values[action] = live.input.grad


def _no_microbatch(index: int) -> Microbatch:
    raise RuntimeError(f"no iteration is running that could have a microbatch {index}")
