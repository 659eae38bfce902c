"""The proof that a schedule may run: complete, placed, free of deadlock, with its peak of live activations."""

from collections import Counter
from dataclasses import dataclass

from suite.pipeline.lowering import Lowered, Message, Op, lower
from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RELEASING_KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    ScheduleError,
)


@dataclass(frozen=True)
class Proof:
    """What was proved of a schedule, and the program that was proved.

    `peak_chunks` is the largest number of forwards per rank whose activations are alive at once; a chunk is 1/v of a
    rank's share of the model, so `peak_activations` is the same in microbatches of a rank's whole share.
    """

    lowered: Lowered
    peak_chunks: tuple[int, ...]

    @property
    def peak_activations(self) -> tuple[float, ...]:
        """Live activations per rank in microbatch shares of one rank."""
        return tuple(chunks / self.lowered.schedule.chunks for chunks in self.peak_chunks)


def prove(schedule: Schedule) -> Proof:
    """Prove the schedule, lower it, and prove the lowered program.

    Raises:
        ScheduleError: the schedule must not run; the message names the action and why.
    """
    _complete(schedule)
    lowered = lower(schedule)
    _streams_agree(lowered)
    _rendezvous(lowered)
    return Proof(lowered, tuple(_peak(program) for program in schedule.programs))


def _complete(schedule: Schedule) -> None:
    """Every microbatch passes every stage exactly once forward and once backward, on the stage's own rank."""
    counts = Counter(action for program in schedule.programs for action in program)
    for rank, program in enumerate(schedule.programs):
        for action in program:
            if not 0 <= action.stage < schedule.virtual_stages or not 0 <= action.microbatch < schedule.microbatches:
                raise ScheduleError(f"{action} of rank {rank} is outside the schedule's stages and microbatches")
            if schedule.rank_of(action) != rank:
                host = schedule.rank_of(action)
                raise ScheduleError(f"{action} is in the program of rank {rank}, but its stage is on rank {host}")
    twice = next((action for action, count in counts.items() if count > 1), None)
    if twice:
        raise ScheduleError(f"{twice} appears {counts[twice]} times; every action runs exactly once")
    replicas = len(schedule.placement)
    for stage in range(schedule.virtual_stages):
        for i in range(schedule.microbatches):
            _complete_microbatch(stage, i, replicas, counts)


def _complete_microbatch(stage: int, microbatch: int, replicas: int, counts: Counter[Action]) -> None:
    key = [(stage, microbatch, 0, replica) for replica in range(replicas)]
    forwards = sum(counts[Action(FORWARD, *k)] for k in key)
    whole = sum(counts[Action(BACKWARD, *k)] for k in key)
    split = [sum(counts[Action(kind, *k)] for k in key) for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT)]
    if forwards != 1:
        raise ScheduleError(f"F {stage}.{microbatch} appears {forwards} times; every action runs exactly once")
    if (whole, *split) not in ((1, 0, 0), (0, 1, 1)):
        raise ScheduleError(
            f"the backward of stage {stage}, microbatch {microbatch} must be either one BW or one B and one W; "
            f"found {whole} BW, {split[0]} B and {split[1]} W"
        )


def _peak(program: tuple[Action, ...]) -> int:
    live = peak = 0
    for action in program:
        live += (action.kind == FORWARD) - (action.kind in RELEASING_KINDS)
        peak = max(peak, live)
    return peak


def _pair(message: Message) -> tuple[int, int]:
    return min(message.source, message.destination), max(message.source, message.destination)


def _streams_agree(lowered: Lowered) -> None:
    """Both ends of every pair of ranks issue the same messages in the same order."""
    issued: dict[tuple[int, int], dict[int, list[Message]]] = {}
    for rank, ops in enumerate(lowered.ops):
        for op in ops:
            if op.kind in ("send", "receive") and op.message:
                issued.setdefault(_pair(op.message), {}).setdefault(rank, []).append(op.message)
    for (low, high), ends in issued.items():
        if ends.get(low) != ends.get(high):
            raise ScheduleError(f"ranks {low} and {high} do not agree on the order of their messages")


class _Ranks:
    """All ranks stepping through their instructions, each pair of ranks being one in-order stream."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.places: dict[Message, int] = {}  # a message's place in its pair's stream
        sizes: Counter[tuple[int, int]] = Counter()
        for ops in lowered.ops:
            for op in ops:
                if op.kind == "send" and op.message:
                    self.places[op.message] = -1
        for ops in lowered.ops:
            for op in ops:
                if op.kind in ("send", "receive") and op.message and self.places.get(op.message) == -1:
                    self.places[op.message] = sizes[_pair(op.message)]
                    sizes[_pair(op.message)] += 1
        self.issued: Counter[tuple[int, int]] = Counter()  # (rank, peer) -> instructions issued to that stream
        self.ran: set[Action] = set()

    def arrived(self, message: Message) -> bool:
        """Both ends have issued everything up to and including the message."""
        place = self.places[message]
        source, destination = message.source, message.destination
        return self.issued[source, destination] > place and self.issued[destination, source] > place

    def blocked_by(self, rank: int, op: Op) -> Message | None:
        """The message that the instruction waits for, if it cannot be done yet. Sends block until received."""
        waits = self.lowered.inputs.get(op.action) if op.action else op.message
        if op.kind == "receive" or waits is None:
            return None
        if op.kind == "send":  # the receive has been posted
            return None if self.issued[waits.destination, rank] > self.places[waits] else waits
        return None if self.arrived(waits) else waits

    def do(self, rank: int, op: Op) -> None:
        """Carry the instruction out."""
        if op.kind in ("send", "receive") and op.message:
            peer = op.message.destination if op.message.source == rank else op.message.source
            self.issued[rank, peer] += 1


def _rendezvous(lowered: Lowered) -> None:
    """The lowered program ends even where a send returns only once its receive has been posted."""
    ranks = _Ranks(lowered)
    heads = [0] * len(lowered.ops)
    runnable = list(range(len(lowered.ops)))
    sleepers: dict[int, set[int]] = {}  # peer -> ranks waiting for it to issue something
    while runnable:
        rank = runnable.pop()
        ops = lowered.ops[rank]
        while heads[rank] < len(ops):
            op = ops[heads[rank]]
            blocker = ranks.blocked_by(rank, op)
            if blocker:
                peer = blocker.source if blocker.destination == rank else blocker.destination
                sleepers.setdefault(peer, set()).add(rank)
                break
            ranks.do(rank, op)
            heads[rank] += 1
            if op.kind in ("send", "receive"):
                runnable += sleepers.pop(rank, ())
    stuck = [rank for rank, head in enumerate(heads) if head < len(lowered.ops[rank])]
    if stuck:
        rank = min(stuck, key=lambda r: (heads[r], r))
        op = lowered.ops[rank][heads[rank]]
        blocker = ranks.blocked_by(rank, op)
        what = f"run {op.action}" if op.action else f"{op.kind} the {op.message}"
        raise ScheduleError(
            f"schedule {lowered.schedule.name} deadlocks with blocking sends: rank {rank} cannot {what}: "
            f"it waits for the {blocker}"
        )
