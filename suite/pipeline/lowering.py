"""Lowering: a schedule's programs with every message put in, once, for all schedules.

Messages between two ranks flow in one order that both ends agree on, in both directions together: a
transport may then run each pair of ranks as one in-order stream (as NCCL does) and needs no tags. The order
is that of a timeline with unit costs. Receives are posted ahead of need; sends start right after the action
that produced them; a send is settled (waited for, its buffer freed) only once something has been received
that proves that it has arrived, so that settling never waits.

Where the schedule has several replicas of the weights, the ranks that hold a stage's copies add up its gradients
across the pipeline. They start these reductions in one order too, that of the stages' completion.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from suite.pipeline.graph import MISSING, Graph
from suite.pipeline.program import FORWARD, RELEASING_KINDS, Action, Schedule

RECEIVE_AHEAD = 2  # receives posted to one peer beyond what the timeline says has been sent

# Instructions are numbers, of which there may be millions: the kind in the low bits, above it the number of the action
# (RUN, REDUCE) or message (RECEIVE, SEND, SETTLE).
RUN, RECEIVE, SEND, SETTLE, REDUCE = range(5)
KIND_BITS, KIND_MASK = 3, 7


class Message(NamedTuple):
    """An activation (the producer is a forward) or a gradient on its way from one rank to another."""

    number: int  # among all messages of the schedule
    producer: Action
    consumer: Action
    source: int
    destination: int

    def __str__(self) -> str:
        what = "activation" if self.producer.kind == FORWARD else "gradient"
        return f"{what} of {self.producer} from rank {self.source} to rank {self.destination}"


class Op(NamedTuple):
    """One instruction for the engine.

    receive: post the receive of `message`. run: wait for `message`, the input of `action` from another rank if it has
    one, and run it; `final` marks the last action that adds to its stage's weight gradients. send: start sending.
    settle: wait for a send that has arrived. reduce: start to add up the gradients of `action`'s stage over its
    replicas; `action` is the last that added to them here.
    """

    kind: Literal["run", "receive", "send", "settle", "reduce"]
    action: Action | None = None
    message: Message | None = None
    final: bool = False


class Messages:
    """Every dependency that crosses ranks, numbered: who produces it, who consumes it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers: list[int] = []
        self.consumers: list[int] = []
        self.incoming = [MISSING] * len(graph.actions)  # by action, the message that it waits for
        self.outgoing = [MISSING] * len(graph.actions)  # by action, the message that it produces
        ranks = graph.rank
        for number, needed in enumerate(graph.needs):
            for other in needed:
                if ranks[other] != ranks[number]:
                    self.incoming[number] = self.outgoing[other] = len(self.producers)
                    self.producers.append(other)
                    self.consumers.append(number)
        self.sources = [ranks[producer] for producer in self.producers]
        self.destinations = [ranks[consumer] for consumer in self.consumers]
        # Both ends' ranks added up: less one's own it is the peer.
        self.ends = [source + end for source, end in zip(self.sources, self.destinations, strict=True)]

    def __len__(self) -> int:
        return len(self.producers)

    def __getitem__(self, number: int) -> Message:
        actions = self.graph.actions
        ends = self.sources[number], self.destinations[number]
        return Message(number, actions[self.producers[number]], actions[self.consumers[number]], *ends)


@dataclass(frozen=True)
class Lowered:
    """The instructions of every rank, as numbers, and the messages that cross between ranks."""

    schedule: Schedule
    codes: tuple[tuple[int, ...], ...]
    messages: Messages
    finals: frozenset[int]  # actions after which their stage's weight gradients are complete

    def program(self, rank: int) -> tuple[Op, ...]:
        """The rank's instructions."""
        return tuple(self.op(code) for code in self.codes[rank])

    def op(self, code: int) -> Op:
        """An instruction from its number."""
        number, kind = code >> KIND_BITS, code & KIND_MASK
        if kind == RUN:
            incoming = self.messages.incoming[number]
            message = None if incoming == MISSING else self.messages[incoming]
            return Op("run", self.schedule.graph.actions[number], message, number in self.finals)
        if kind == REDUCE:
            return Op("reduce", self.schedule.graph.actions[number])
        return Op(("receive", "send", "settle")[kind - 1], None, self.messages[number])

    @cached_property
    def ops(self) -> tuple[tuple[Op, ...], ...]:
        """The instructions of all ranks."""
        return tuple(self.program(rank) for rank in range(len(self.codes)))

    @cached_property
    def inputs(self) -> dict[Action, Message]:
        """All messages by their consumers."""
        return {message.consumer: message for message in map(self.messages.__getitem__, range(len(self.messages)))}


def lower(schedule: Schedule) -> Lowered:
    """Put sends, receives, settlements and the reductions of replicas into every rank's program.

    Raises:
        ScheduleError: the schedule deadlocks.
    """
    graph = schedule.graph
    starts, ends = graph.whole_times
    messages = Messages(graph)
    streams = _streams(messages, ends, len(schedule.programs))
    finals = [_finals(graph, rank) for rank in range(len(schedule.programs))]
    overlapped = schedule.replicas == 1
    reductions: list[dict[int, list[int]]] = [{} for _ in finals] if overlapped else _reductions(finals, ends)
    produced = [ends[number] for number in messages.producers]
    codes = tuple(
        _Lowering(messages, rank, streams[rank], starts, produced).codes(reductions[rank])
        for rank in range(len(schedule.programs))
    )
    marked = frozenset(number for program in finals for number in program.values()) if overlapped else frozenset()
    return Lowered(schedule, codes, messages, marked)


def _streams(messages: Messages, ends: list[float], ranks: int) -> list[dict[int, deque[int]]]:
    """For every rank the messages that it exchanges with each peer, in the order that both ends agree on."""
    pairs: dict[tuple[int, int], list[int]] = {}
    sources, producers = messages.sources, messages.producers
    for number, (source, destination) in enumerate(zip(sources, messages.destinations, strict=True)):
        pair = (source, destination) if source < destination else (destination, source)
        pairs.setdefault(pair, []).append(number)
    streams: list[dict[int, deque[int]]] = [{} for _ in range(ranks)]
    for (low, high), stream in pairs.items():
        stream.sort(key=lambda number: (ends[producers[number]], sources[number]))
        streams[low][high], streams[high][low] = deque(stream), deque(stream)
    return streams


def _finals(graph: Graph, rank: int) -> dict[tuple[int, int], int]:
    """The number of the last action that adds to the weight gradients of each (stage, replica) of the rank."""
    finals = {}
    for number in range(graph.first[rank], graph.first[rank + 1]):
        action = graph.actions[number]
        if action[0] in RELEASING_KINDS:
            finals[action[1], action[4]] = number
    return finals


def _reductions(finals: list[dict[tuple[int, int], int]], ends: list[float]) -> list[dict[int, list[int]]]:
    """By rank: after which action it starts to reduce which stages, those being given by their last actions here.

    The ranks that hold a stage's replicas start their reductions in the order in which stages are complete on all.
    """
    complete: dict[int, float] = {}
    for program in finals:
        for (stage, _), number in program.items():
            complete[stage] = max(ends[number], complete.get(stage, 0.0))
    after: list[dict[int, list[int]]] = []
    for program in finals:
        here: dict[int, list[int]] = {}
        latest = 0
        for _, number in sorted(program.items(), key=lambda item: (complete[item[0][0]], item[0])):
            latest = max(latest, number)
            here.setdefault(latest, []).append(number)
        after.append(here)
    return after


class _Lowering:
    """Builds the instructions of one rank."""

    def __init__(
        self,
        messages: Messages,
        rank: int,
        ahead: dict[int, deque[int]],
        starts: list[float],
        produced: list[float],
    ) -> None:
        self.messages, self.rank, self.starts = messages, rank, starts
        self.produced = produced  # when each message is
        self.ahead = ahead  # what is still to be issued with each peer, in stream order
        self.unread = dict.fromkeys(ahead, 0)  # receives posted and not yet consumed, by peer
        self.unsettled: dict[int, deque[int]] = {peer: deque() for peer in ahead}
        self.result: list[int] = []

    def codes(self, reductions: dict[int, list[int]]) -> tuple[int, ...]:
        """The instructions; `reductions` follow an action."""
        graph, append, sources = self.messages.graph, self.result.append, self.messages.sources
        incoming, outgoing, producers = self.messages.incoming, self.messages.outgoing, self.messages.producers
        unread, unsettled, starts = self.unread, self.unsettled, self.starts
        streams = list(self.ahead.items())
        for number in range(graph.first[self.rank], graph.first[self.rank + 1]):
            for peer, stream in streams:
                if stream and sources[stream[0]] == peer:
                    self._post(peer, stream, starts[number])
            append(number << KIND_BITS | RUN)
            message = incoming[number]
            if message >= 0:
                peer = sources[message]
                unread[peer] -= 1
                if unsettled[peer]:
                    self._settle(unsettled[peer], producers[message])
            message = outgoing[number]
            if message >= 0:
                self._send(message)
            if number in reductions:
                self.result += [last << KIND_BITS | REDUCE for last in reductions[number]]
        for pending in unsettled.values():
            self.result += [message << KIND_BITS | SETTLE for message in pending]
        return tuple(self.result)

    def _post(self, peer: int, stream: deque[int], now: float) -> None:
        """Post the receives from `peer` that are due by now, and a few ahead."""
        sources = self.messages.sources
        while stream and sources[stream[0]] == peer:
            if self.unread[peer] >= RECEIVE_AHEAD and self.produced[stream[0]] > now:
                return
            self._receive(peer, stream)

    def _receive(self, peer: int, stream: deque[int]) -> None:
        self.result.append(stream.popleft() << KIND_BITS | RECEIVE)
        self.unread[peer] += 1

    def _send(self, message: int) -> None:
        peer = self.messages.destinations[message]
        stream = self.ahead[peer]
        while stream[0] != message:  # receives that come before it in the order of this pair
            self._receive(peer, stream)
        self.result.append(stream.popleft() << KIND_BITS | SEND)
        self.unsettled[peer].append(message)

    def _settle(self, pending: deque[int], produced: int) -> None:
        """What the peer consumed before it ran `produced` has arrived for certain."""
        consumers = self.messages.consumers
        while pending and consumers[pending[0]] <= produced:
            self.result.append(pending.popleft() << KIND_BITS | SETTLE)
