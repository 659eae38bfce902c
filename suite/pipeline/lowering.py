"""Lowering: a schedule's programs with every message put in, once, for all schedules.

Messages between two ranks flow in one order that both ends agree on, in both directions together: a
transport may then run each pair of ranks as one in-order stream (as NCCL does) and needs no tags. The order
is that of a timeline with unit costs. Receives are posted ahead of need; sends start right after the action
that produced them; a send is settled (waited for, its buffer freed) only once something has been received
that proves that it has arrived, so that settling never waits.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from suite.pipeline.program import FORWARD, RELEASING_KINDS, Action, Schedule
from suite.pipeline.timeline import Costs, Span, timeline

RECEIVE_AHEAD = 2  # receives posted to one peer beyond what the timeline says has been sent


class Message(NamedTuple):
    """An activation (the producer is a forward) or a gradient on its way from one rank to another."""

    producer: Action
    consumer: Action
    source: int
    destination: int

    def __str__(self) -> str:
        what = "activation" if self.producer.kind == FORWARD else "gradient"
        return f"{what} of {self.producer} from rank {self.source} to rank {self.destination}"


class Op(NamedTuple):
    """One instruction for the engine.

    receive: post the receive of `message`. run: wait for the inputs of `action`, run it; `final` marks the last
    action that adds to its stage's weight gradients. send: start sending. settle: wait for a send that has arrived.
    """

    kind: Literal["receive", "run", "send", "settle"]
    action: Action | None = None
    message: Message | None = None
    final: bool = False


@dataclass(frozen=True)
class Lowered:
    """The instructions of every rank, and the messages that cross between ranks."""

    schedule: Schedule
    ops: tuple[tuple[Op, ...], ...]
    inputs: dict[Action, Message]  # by consumer


def lower(schedule: Schedule) -> Lowered:
    """Put sends, receives and settlements into every rank's program.

    Raises:
        ScheduleError: the schedule deadlocks.
    """
    unit = float(schedule.chunks)  # every time is then a whole number, so that equal times compare equal
    times = {span.action: span for row in timeline(schedule, Costs(unit, unit, unit)).ranks for span in row}
    inputs = _messages(schedule)
    streams: dict[tuple[int, int], list[Message]] = {}
    for message in inputs.values():
        _, _, source, destination = message
        pair = (source, destination) if source < destination else (destination, source)
        streams.setdefault(pair, []).append(message)
    for stream in streams.values():
        stream.sort(key=lambda message: (times[message.producer].end, message.source))
    positions = {action: index for program in schedule.programs for index, action in enumerate(program)}
    ops = tuple(
        _Lowering(program, rank, streams, inputs, times, positions).ops()
        for rank, program in enumerate(schedule.programs)
    )
    return Lowered(schedule, ops, inputs)


def _messages(schedule: Schedule) -> dict[Action, Message]:
    """Every dependency that crosses ranks, by its consumer."""
    messages = {}
    for action, needed in schedule.dependencies.items():
        destination = schedule.rank_of(action)
        for producer in needed:
            source = schedule.rank_of(producer)
            if source != destination:
                messages[action] = Message(producer, action, source, destination)
    return messages


class _Lowering:
    """Builds the instructions of one rank."""

    def __init__(
        self,
        program: tuple[Action, ...],
        rank: int,
        streams: dict[tuple[int, int], list[Message]],
        inputs: dict[Action, Message],
        times: dict[Action, Span],
        positions: dict[Action, int],
    ) -> None:
        self.rank = rank
        self.program = program
        self.inputs = inputs
        self.times = times
        self.positions = positions  # every action's place in the program of its rank
        self.ahead: dict[int, deque[Message]] = {  # what is still to be issued with each peer, in stream order
            (low if high == rank else high): deque(stream)
            for (low, high), stream in streams.items()
            if rank in (low, high)
        }
        self.outputs = {
            message.producer: message for stream in self.ahead.values() for message in stream if message.source == rank
        }
        self.unread = dict.fromkeys(self.ahead, 0)  # receives posted and not yet consumed, by peer
        self.unsettled: dict[int, deque[Message]] = {peer: deque() for peer in self.ahead}
        self.result: list[Op] = []

    def ops(self) -> tuple[Op, ...]:
        stages = {(action.stage, action.replica): action for action in self.program if action.kind in RELEASING_KINDS}
        finals = set(stages.values())
        for action in self.program:
            for peer, stream in self.ahead.items():
                if stream and stream[0].destination == self.rank:
                    self._post(peer, stream, self.times[action].start)
            self.result.append(Op("run", action, None, action in finals))
            incoming = self.inputs.get(action)
            if incoming:
                self.unread[incoming.source] -= 1
                self._settle(incoming)
            outgoing = self.outputs.get(action)
            if outgoing:
                self._send(outgoing)
        for pending in self.unsettled.values():
            self.result += [Op("settle", None, message) for message in pending]
        return tuple(self.result)

    def _post(self, peer: int, stream: deque[Message], now: float) -> None:
        """Post the receives from `peer` that are due by now, and a few ahead."""
        while stream and stream[0].destination == self.rank:
            if self.unread[peer] >= RECEIVE_AHEAD and self.times[stream[0].producer].end > now:
                return
            self._receive(peer)

    def _receive(self, peer: int) -> None:
        self.result.append(Op("receive", None, self.ahead[peer].popleft()))
        self.unread[peer] += 1

    def _send(self, message: Message) -> None:
        stream = self.ahead[message.destination]
        while stream[0] is not message:  # receives that come before it in the order of this pair
            self._receive(message.destination)
        self.result.append(Op("send", None, stream.popleft()))
        self.unsettled[message.destination].append(message)

    def _settle(self, received: Message) -> None:
        """What the peer consumed before it produced `received` has arrived for certain."""
        produced = self.positions[received.producer]
        pending = self.unsettled[received.source]
        while pending and self.positions[pending[0].consumer] <= produced:
            self.result.append(Op("settle", None, pending.popleft()))
