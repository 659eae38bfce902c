"""The engine: carries out one rank's lowered program. It knows actions and messages, but no schedule and no model."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from suite.measure.clock import Clock
from suite.pipeline.lowering import Lowered, Message, Op
from suite.pipeline.program import Action
from suite.pipeline.transport import Transport


class Worker(Protocol):
    """What the actions do: compute on a model, or wait for as long as computing would take."""

    def run(self, action: Action, value: torch.Tensor | None, final: bool) -> torch.Tensor | None:
        """Carry out one action on its input, and return what the next action needs of it.

        The input is the activation for F and the gradient for B and BW, None where the action has none. `final` is the
        last action that adds to its stage's weight gradients.
        """

    def reduce(self, action: Action) -> None:
        """Start to add up the weight gradients of the action's stage over its replicas."""


class Executed(NamedTuple):
    """One action as it ran: its marks on the engine's clock."""

    action: Action
    start: int
    end: int


class Waited(NamedTuple):
    """The wait for one message: its marks on the engine's clock."""

    message: Message
    start: int
    end: int


class Engine:
    """Runs one rank's part of a proved, lowered schedule.

    What an action returns is a message, or a value for a stage on the same rank.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        worker: Worker,
        transport: Transport,
        clock: Clock,
        note: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`note` is told 2n when instruction n begins (and may have to wait), 2n + 1 when an action has its input."""
        self.ops = lowered.program(rank)
        self.here = _needed_here(lowered, rank)
        self.local = {  # by consumer, the action of another stage on this rank whose output it takes
            consumer: producer
            for consumer, needed in self.here.items()
            for producer in needed
            if producer.stage != consumer.stage
        }
        self.worker, self.transport, self.clock, self.note = worker, transport, clock, note
        self.instructions = {
            "receive": self._receive,
            "run": self._run,
            "send": self._send,
            "settle": self._settle,
            "reduce": self._reduce,
        }
        self.values: dict[Action, torch.Tensor] = {}  # outputs not yet consumed or sent, by their producer
        self.executed: list[Executed] = []
        self.waited: list[Waited] = []

    def run(self) -> None:
        """One pass over all microbatches through the program.

        `executed` then holds the actions as they ran, `waited` the waits for messages.
        """
        self.executed, self.waited = [], []
        for index, op in enumerate(self.ops):
            self.note(2 * index)
            self.instructions[op.kind](op, index)

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

    def _reduce(self, op: Op, index: int) -> None:
        assert op.action
        self.worker.reduce(op.action)

    def _run(self, op: Op, index: int) -> None:
        action = op.action
        assert action
        output = self._execute(action, self._input(op), op.final, index)
        if output is not None:
            self.values[action] = output

    def _execute(self, action: Action, value: torch.Tensor | None, final: bool, index: int) -> torch.Tensor | None:
        """Have the worker carry out the action of instruction `index`, and note when."""
        self.note(2 * index + 1)
        start = self.clock.mark()
        output = self.worker.run(action, value, final)
        self.executed.append(Executed(action, start, self.clock.mark()))
        return output

    def _input(self, op: Op) -> torch.Tensor | None:
        """The activation or gradient that the action consumes: a message, or a value of this rank."""
        assert op.action
        if op.message is not None:
            start = self.clock.mark()
            value = self.transport.take(op.message)
            self.waited.append(Waited(op.message, start, self.clock.mark()))
            return value
        producer = self.local.get(op.action)
        return None if producer is None else self.values.pop(producer)


def _needed_here(lowered: Lowered, rank: int) -> dict[Action, list[Action]]:
    """What each of the rank's actions needs of this rank."""
    graph = lowered.schedule.graph
    actions = graph.actions
    return {
        actions[number]: [actions[other] for other in graph.needs[number] if graph.rank[other] == rank]
        for number in range(graph.first[rank], graph.first[rank + 1])
    }
