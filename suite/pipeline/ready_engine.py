"""The engine without a fixed order: the program is a hint, and a rank runs the earliest of its actions that is ready.

What decides is which messages have arrived, so that the order may differ from run to run; `executed` has the one that
happened. Within one kind of action of one stage the hint's order is kept. At most `cap` microbatches are between the
forward of the rank's first chunk and the action that frees its activations; with several replicas of the weights that
is so for each, or two ranks could fill up with what needs the other.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from suite.measure.clock import Clock
from suite.parallel.topology import ALONE, Group, Topology
from suite.pipeline.engine import Engine, Waited, Worker
from suite.pipeline.lowering import Lowered
from suite.pipeline.mailboxes import Mailboxes
from suite.pipeline.program import FORWARD, RELEASING_KINDS, Action
from suite.pipeline.transport import Transport

Stream = tuple[str, int, int]  # kind, stage, replica


def _stream(action: Action) -> Stream:
    return action.kind, action.stage, action.replica


class ReadyEngine(Engine):
    """Runs one rank's part of a proved schedule in the order in which its actions become ready.

    The ranks of a tensor group run the same actions in the same order: the first one decides. Data-parallel ranks may
    differ, so gradients are reduced when all actions are done, in an order that all agree on.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        worker: Worker,
        transport: Transport,
        clock: Clock,
        note: Callable[[int], None] = lambda code: None,
        tensor: Group = ALONE,
    ) -> None:
        """`note` as for `Engine`."""
        super().__init__(lowered, rank, worker, transport, clock, note)
        assert lowered.schedule.cap is not None
        self.cap, self.tensor, self.schedule = lowered.schedule.cap, tensor, lowered.schedule
        self.hint = self.schedule.programs[rank]
        self.places = {action: place for place, action in enumerate(self.hint)}
        self.notes = {op.action: index for index, op in enumerate(self.ops) if op.kind == "run" and op.action}
        self.inputs = {op.action: op.message for op in self.ops if op.kind == "run" and op.action and op.message}
        self.outgoing = {op.message.producer: op.message for op in self.ops if op.kind == "send" and op.message}
        hosted = self.schedule.hosted(rank)
        self.first = {replica: min(stage for stage, r in hosted if r == replica) for _, replica in hosted}
        self.expected = self._expected()
        self.mail = Mailboxes(transport.group, transport.empty)

    def run(self) -> None:
        """One pass over all microbatches, each rank at its own pace."""
        self.executed, self.waited = [], []
        for source, tag, consumers in self.expected:
            self.mail.listen(source, tag, consumers)
        waiting: dict[Stream, deque[Action]] = defaultdict(deque)
        for action in self.hint:
            waiting[_stream(action)].append(action)
        done: set[Action] = set()
        live: Counter[int] = Counter()  # microbatches of each replica between F and release of the first chunk
        for _ in self.hint:
            action = self._next(waiting, done, live)
            waiting[_stream(action)].popleft()
            self._carry_out(action)
            done.add(action)
            if action.stage == self.first[action.replica]:
                live[action.replica] += (action.kind == FORWARD) - (action.kind in RELEASING_KINDS)
        for key in sorted({(action.stage, action.replica) for action in self.hint}):
            self.worker.reduce(Action(FORWARD, key[0], 0, 0, key[1]))
        self.mail.finish()

    def _expected(self) -> list[tuple[int, int, list[Action]]]:
        """An iteration's messages by stream: source, tag, and consumers in the order of their producers' hint."""
        consumers = {message.producer: message.consumer for message in self.inputs.values()}
        streams: dict[tuple[int, int], list[Action]] = defaultdict(list)
        for source in sorted({message.source for message in self.inputs.values()}):
            for action in self.schedule.programs[source]:
                if action in consumers:
                    streams[source, self._tag(consumers[action])].append(consumers[action])
        return [(source, tag, expected) for (source, tag), expected in streams.items()]

    def _tag(self, consumer: Action) -> int:
        stages, forward = self.schedule.virtual_stages, consumer.kind == FORWARD
        return 2 * (consumer.replica * stages + consumer.stage) + forward

    def _next(self, waiting: dict[Stream, deque[Action]], done: set[Action], live: Counter[int]) -> Action:
        """The ready action that comes earliest in the hint; waits until there is one."""
        if self.tensor.size > 1 and self.tensor.index > 0:
            return self._agreed(None)
        heads = [stream[0] for stream in waiting.values() if stream]
        heads.sort(key=self.places.__getitem__)
        ready = [action for action in heads if self._ready(action, done, live)]
        if not ready:
            first = heads[0]
            self.note(2 * self.notes[first])
            start = self.clock.mark()
            can_wait = [action for action in heads if self._could(action, live) and action in self.inputs]
            self.mail.wait_for(lambda arrived: any(action in arrived for action in can_wait))
            ready = [action for action in heads if self._ready(action, done, live)]
            self.waited.append(Waited(self.inputs[ready[0]], start, self.clock.mark()))
        return self._agreed(ready[0])

    def _agreed(self, action: Action | None) -> Action:
        """The first tensor rank's choice, on all of them."""
        if self.tensor.size == 1:
            assert action
            return action
        place = torch.tensor([self.places[action] if action else 0])
        dist.broadcast(place, self.tensor.ranks[0], group=self.tensor.handle)
        return self.hint[int(place)]

    def _could(self, action: Action, live: Counter[int]) -> bool:
        """Whether the cap allows it."""
        first = action.kind == FORWARD and action.stage == self.first[action.replica]
        return not first or live[action.replica] < self.cap

    def _ready(self, action: Action, done: set[Action], live: Counter[int]) -> bool:
        """Whether everything that the action needs is here."""
        if not self._could(action, live):
            return False
        if action in self.inputs and action not in self.mail.arrived:
            return False
        return all(needed in done for needed in self.here[action])

    def _carry_out(self, action: Action) -> None:
        value = None
        if action in self.inputs:
            value = self.transport.whole(self.mail.take(action))
        elif action in self.local:
            value = self.values.pop(self.local[action])
        output = self._execute(action, value, final=False, index=self.notes[action])
        message = self.outgoing.get(action)
        if output is None:
            return
        if message is None:
            self.values[action] = output
        else:
            self.mail.send(message.destination, self._tag(message.consumer), self.transport.share_of(message, output))


def engine_for(
    lowered: Lowered,
    topology: Topology,
    worker: Worker,
    transport: Transport,
    clock: Clock,
    note: Callable[[int], None],
) -> Engine:
    """The engine that the schedule asks for: one that keeps the programs' order, or one that takes them as hints."""
    rank = topology.pipeline.index
    if lowered.schedule.cap is None:
        return Engine(lowered, rank, worker, transport, clock, note)
    return ReadyEngine(lowered, rank, worker, transport, clock, note, topology.tensor)
