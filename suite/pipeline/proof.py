"""The proof that a schedule may run: complete, placed, free of deadlock, with its peak of live activations."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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


def prove(schedule: Schedule, forward_only: bool = False) -> Proof:
    """Prove the schedule, lower it, and prove the lowered program.

    `forward_only` is for evaluation: no stage has a backward then.

    Raises:
        ScheduleError: the schedule must not run; the message names the action and why.
    """
    with _no_collection():
        _complete(schedule, (0, 0, 0) if forward_only else None)
        lowered = lower(schedule)
        prove_messages(lowered)
    return Proof(lowered, tuple(_peak(program) for program in schedule.programs))


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector would walk millions of tuples, none of them garbage, again and again while they are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _complete(schedule: Schedule, backward: tuple[int, int, int] | None) -> None:
    """Every microbatch passes every stage exactly once forward and once backward, on the stage's own rank.

    `backward` is how many BW, B and W each stage has to have for a microbatch; None: one BW, or one B and one W.
    """
    allowed = ((1, 0, 0), (0, 1, 1)) if backward is None else (backward,)
    counts = Counter(action for program in schedule.programs for action in program)
    stages, microbatches = schedule.virtual_stages, schedule.microbatches
    for rank, program in enumerate(schedule.programs):
        for action in program:
            if not 0 <= action.stage < stages or not 0 <= action.microbatch < microbatches:
                raise ScheduleError(f"{action} of rank {rank} is outside the schedule's stages and microbatches")
            host = schedule.rank_of(action)
            if host != rank:
                raise ScheduleError(f"{action} is in the program of rank {rank}, but its stage is on rank {host}")
    twice = next((action for action, count in counts.items() if count > 1), None)
    if twice:
        raise ScheduleError(f"{twice} appears {counts[twice]} times; every action runs exactly once")
    tally = Counter((action.kind, action.stage, action.microbatch) for action in counts)
    for stage in range(stages):
        for i in range(microbatches):
            forwards = tally[FORWARD, stage, i]
            whole, inputs, weights = (tally[kind, stage, i] for kind in (BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT))
            if forwards != 1:
                raise ScheduleError(f"F {stage}.{i} appears {forwards} times; every action runs exactly once")
            if (whole, inputs, weights) not in allowed:
                wanted = "either one BW or one B and one W" if backward is None else "left out"
                raise ScheduleError(
                    f"the backward of stage {stage}, microbatch {i} must be {wanted}; "
                    f"found {whole} BW, {inputs} B and {weights} W"
                )


def _peak(program: tuple[Action, ...]) -> int:
    live = peak = 0
    for action in program:
        live += (action.kind == FORWARD) - (action.kind in RELEASING_KINDS)
        peak = max(peak, live)
    return peak


def prove_messages(lowered: Lowered) -> None:
    """Prove that the lowered program ends even where a send returns only once its receive has been posted.

    Raises:
        ScheduleError: two ranks disagree on the order of their messages, or the program deadlocks.
    """
    ranks = _Ranks(lowered, _places(lowered))
    heads = [0] * len(lowered.ops)
    runnable = list(range(len(lowered.ops)))
    sleepers: dict[int, set[int]] = {}  # peer -> ranks waiting for it to issue something
    while runnable:
        rank = runnable.pop()
        ops = lowered.ops[rank]
        while heads[rank] < len(ops):
            op = ops[heads[rank]]
            blocker = ranks.carry_out(rank, op)
            if blocker:
                sleepers.setdefault(_peer(rank, blocker), set()).add(rank)
                break
            heads[rank] += 1
            if rank in sleepers and op.message:
                runnable += sleepers.pop(rank)
    stuck = [rank for rank, head in enumerate(heads) if head < len(lowered.ops[rank])]
    if stuck:
        rank = min(stuck, key=lambda r: (heads[r], r))
        op = lowered.ops[rank][heads[rank]]
        what = f"run {op.action}" if op.action else f"{op.kind} the {op.message}"
        raise ScheduleError(
            f"schedule {lowered.schedule.name} deadlocks with blocking sends: rank {rank} cannot {what}: "
            f"it waits for the {ranks.carry_out(rank, op)}"
        )


def _peer(rank: int, message: Message) -> int:
    return message.destination if message.source == rank else message.source


def _places(lowered: Lowered) -> dict[Action, int]:
    """Every message's place, by its consumer, in the one stream of its two ranks; both ends must agree on it."""
    issued: dict[tuple[int, int], list[Message]] = {}  # (rank, peer) -> in the order of the rank's program
    for rank, ops in enumerate(lowered.ops):
        for op in ops:
            if op.message and op.kind != "settle":
                issued.setdefault((rank, _peer(rank, op.message)), []).append(op.message)
    for (rank, peer), messages in issued.items():
        if messages != issued.get((peer, rank)):
            low, high = sorted((rank, peer))
            raise ScheduleError(f"ranks {low} and {high} do not agree on the order of their messages")
    return {message.consumer: place for stream in issued.values() for place, message in enumerate(stream)}


class _Ranks:
    """All ranks stepping through their instructions, each pair of ranks being one in-order stream."""

    def __init__(self, lowered: Lowered, places: dict[Action, int]) -> None:
        self.inputs, self.places = lowered.inputs, places
        size = len(lowered.ops)
        self.issued = [[0] * size for _ in range(size)]  # messages of the rank's stream with each peer, so far

    def carry_out(self, rank: int, op: Op) -> Message | None:
        """Do the instruction, or return the message that it has to wait for.

        A send waits until the other end has got to the message, a run or settle until both have: it has arrived.
        """
        kind, action, message, _ = op
        if action:
            message = self.inputs.get(action)
        if not message:
            return None
        _, consumer, source, destination = message
        peer = destination if source == rank else source
        mine = self.issued[rank]
        if kind == "receive":
            mine[peer] += 1
            return None
        place = self.places.get(consumer)
        if place is None or self.issued[peer][rank] <= place:
            return message
        if kind == "send":
            mine[peer] += 1
            return None
        return message if mine[peer] <= place else None
