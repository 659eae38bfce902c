"""Lowering: a schedule's programs with every message put in, once, for all schedules.

Messages between two ranks flow in one order that both ends agree on, in both directions together: a
transport may then run each pair of ranks as one in-order stream (as NCCL does) and needs no tags. The order
is that of a timeline with unit costs. Receives are posted ahead of need; sends start right after the action
that produced them; a send is settled (waited for, its buffer freed) only once something has been received
that proves that it has arrived, so that settling never waits.

Where the schedule has several replicas of the weights, the ranks that hold a stage's copies add up its gradients
across the pipeline. They start these reductions in one order too, that of the stages' completion.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from suite.pipeline.graph import BW, MISSING, Graph, W
from suite.pipeline.program import FORWARD, Action, Schedule

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
    """Every dependency that crosses ranks, numbered in the order of the consumers: who produces it, who consumes it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        waiting = np.flatnonzero(graph.awaited >= 0)
        self.consumers = waiting[graph.ranks[graph.awaited[waiting]] != graph.ranks[waiting]]
        self.producers = graph.awaited[self.consumers]
        self.sources, self.destinations = graph.ranks[self.producers], graph.ranks[self.consumers]
        self.incoming = np.full(len(graph.actions), MISSING)  # by action, the message that it waits for
        self.incoming[self.consumers] = np.arange(len(self.consumers))

    def __len__(self) -> int:
        return len(self.producers)

    def __getitem__(self, number: int) -> Message:
        producer, consumer = (self.graph.actions[ends[number]] for ends in (self.producers, self.consumers))
        return Message(number, producer, consumer, int(self.sources[number]), int(self.destinations[number]))


@dataclass(frozen=True)
class Lowered:
    """The instructions of every rank, as numbers, and the messages that cross between ranks."""

    schedule: Schedule
    codes: tuple[np.ndarray, ...]
    messages: Messages
    finals: frozenset[int]  # actions after which their stage's weight gradients are complete

    def program(self, rank: int) -> tuple[Op, ...]:
        """The rank's instructions."""
        return tuple(map(self.op, self.codes[rank].tolist()))

    def op(self, code: int) -> Op:
        """An instruction from its number."""
        number, kind = code >> KIND_BITS, code & KIND_MASK
        if kind == RUN:
            incoming = int(self.messages.incoming[number])
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
    finals = graph.table[[W, BW]].max(axis=(0, 2, 3))  # by replica and stage, the last action that adds to its weights
    overlapped = schedule.replicas == 1
    marked = frozenset(finals[finals != MISSING].tolist()) if overlapped else frozenset()
    reductions = [] if overlapped else _reductions(graph, finals, ends)
    return Lowered(schedule, _Lowering(messages, starts, ends).codes(reductions), messages, marked)


def _reductions(graph: Graph, finals: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """After which action a rank starts to reduce which stage, which is given by its last action there.

    The ranks that hold a stage's replicas start their reductions in the order in which stages are complete on all.
    """
    there = np.where(finals == MISSING, 0.0, ends[finals])
    last = [
        (complete, stage, replica) for stage, complete in enumerate(there.max(axis=0)) for replica in range(len(finals))
    ]
    latest = [0] * len(graph.first)
    after = []
    for _, stage, replica in sorted(last):
        number = int(finals[replica, stage])
        if number != MISSING:
            rank = graph.rank[number]
            latest[rank] = max(latest[rank], number)
            after.append((latest[rank], number))
    return after


# A moment in a rank's program: an action's number times _STEPS, and one of these things around it, in their order.
_POST, _RUN, _SETTLE, _SEND, _REDUCE, _END, _STEPS = range(7)


class _Lowering:
    """Finds the moment of every instruction, for all ranks at once.

    Every message has two ends. They are sorted by rank, by peer (in the order of their first messages), and within such
    a stream in the order that both ranks agree on. `received` tells which of the two each is.
    """

    def __init__(self, messages: Messages, starts: np.ndarray, ends: np.ndarray) -> None:
        self.graph, self.starts = messages.graph, starts
        sources, destinations = messages.sources, messages.destinations
        produced = ends[messages.producers]
        pairs = np.minimum(sources, destinations) * len(self.graph.first) + np.maximum(sources, destinations)
        _, first, pair = np.unique(pairs, return_index=True, return_inverse=True)
        agreed = np.lexsort((sources, produced, first[pair]))
        ranks = np.stack((sources[agreed], destinations[agreed]), axis=1).ravel()
        by_rank = np.argsort(ranks, kind="stable")
        self.messages, self.ranks = np.repeat(agreed, 2)[by_rank], ranks[by_rank]
        self.received = destinations[self.messages] == self.ranks
        self.producers, self.consumers = messages.producers[self.messages], messages.consumers[self.messages]
        self.produced = produced[self.messages]
        stream = self.ranks * len(messages) + first[pair[self.messages]]
        self.streams = np.cumsum(np.diff(stream, prepend=stream[:1]) != 0)
        # The receives by stream, but there in the order in which the rank consumes them.
        receives = np.flatnonzero(self.received)
        self.taken = receives[np.lexsort((self.consumers[receives], self.streams[receives]))]
        self.beyond = _STEPS * (len(starts) + 1)  # any moment is below it

    def codes(self, reductions: list[tuple[int, int]]) -> tuple[np.ndarray, ...]:
        """The instructions of every rank; `reductions` follow an action."""
        actions = np.arange(len(self.starts))
        sends = np.flatnonzero(~self.received)
        after, last = np.array(reductions, int).reshape(-1, 2).T
        parts = (
            (self._exchanged(), self.messages, np.where(self.received, RECEIVE, SEND)),
            (_STEPS * actions + _RUN, actions, RUN),
            (self._settled(sends), self.messages[sends], SETTLE),
            (_STEPS * after + _REDUCE, last, REDUCE),
        )
        moments = np.concatenate([moment for moment, _, _ in parts])
        codes = np.concatenate([number << KIND_BITS | kind for _, number, kind in parts])
        order = np.argsort(moments, kind="stable")
        starts = np.searchsorted(moments[order], _STEPS * np.array(self.graph.first[1:-1], int))
        return tuple(np.split(codes[order], starts))

    def _exchanged(self) -> np.ndarray:
        """When each message is sent, right after its producer, or its receive is posted.

        A receive is posted before the first action that starts when the message has been produced, or that comes with
        fewer than RECEIVE_AHEAD receives unread; but after what precedes it in its stream and before the next send.
        """
        receives, sends = np.flatnonzero(self.received), np.flatnonzero(~self.received)
        streams, ranks, count = self.streams[receives], self.ranks[receives], np.arange(len(receives))
        apart = self.starts.max(initial=0) + 3  # between the times of two ranks, so that one search finds all
        due = np.searchsorted(self.starts + self.graph.ranks * apart, self.produced[receives] + ranks * apart)
        read = self.consumers[self.taken[np.maximum(count - RECEIVE_AHEAD, 0)]] + 1
        first_ones = count - np.searchsorted(streams, streams) < RECEIVE_AHEAD
        room = np.where(first_ones, np.array(self.graph.first)[ranks], read)
        sent = _STEPS * self.producers + _SEND
        following = np.append(sends, len(sent))[np.searchsorted(sends, receives)]
        before_send = np.append(self.streams, MISSING)[following] == streams
        latest = np.where(before_send, np.append(sent, 0)[following], self.beyond - 1)
        moments = sent + _STEPS - _SEND  # after a send: before the next action
        moments[receives] = np.minimum(_STEPS * np.minimum(due, room) + _POST, latest)
        return np.where(self.received, self._so_far(moments, self.streams), sent)

    def _settled(self, sends: np.ndarray) -> np.ndarray:
        """When sends, in the order of their streams, are settled.

        That is after the first action that takes something which the peer produced once it had consumed the message
        and all before it; if there is none, at the end.
        """
        streams = self.streams[sends]
        known = self._so_far(self.producers[self.taken], self.streams[self.taken])
        keys = known + self.streams[self.taken] * self.beyond
        consumed = self._so_far(self.consumers[sends], streams)
        found = np.searchsorted(keys, consumed + streams * self.beyond)
        proved = found < np.searchsorted(self.streams[self.taken], streams, side="right")
        takes = np.append(self.consumers[self.taken], MISSING)[found]
        end = np.array(self.graph.first)[self.ranks[sends] + 1] - 1
        return np.where(proved, _STEPS * takes + _SETTLE, _STEPS * end + _END)

    def _so_far(self, values: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """The largest value up to each place within its stream."""
        return np.maximum.accumulate(values + streams * self.beyond) - streams * self.beyond
