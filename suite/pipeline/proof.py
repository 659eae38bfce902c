"""The proof that a schedule may run: complete, placed, free of deadlock, with its peak of live activations."""

from dataclasses import dataclass
from itertools import pairwise

from suite.pipeline.collection import no_collection
from suite.pipeline.graph import MISSING, Graph
from suite.pipeline.lowering import KIND_BITS, KIND_MASK, RECEIVE, REDUCE, RUN, SEND, Lowered, lower
from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RECOMPUTE,
    RELEASING_KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    ScheduleError,
)
from suite.pipeline.readiness import settled
from suite.pipeline.timeline import Costs


@dataclass(frozen=True)
class Proof:
    """What was proved of a schedule, and the program that was proved.

    `peak_chunks` is the largest number of forwards per rank whose activations are alive at once; a chunk is 1/v of a
    rank's share of the model, so `peak_activations` is the same in microbatches of a rank's whole share.
    `peak_deferred` is the largest number of B per rank whose W is still to come.
    """

    lowered: Lowered
    peak_chunks: tuple[int, ...]
    peak_deferred: tuple[int, ...]

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
    with no_collection():
        _runnable(schedule)
        _complete(schedule.graph, forward_only)
        settled(schedule, Costs())  # a hint with a cap can lock up although its own order cannot
        lowered = lower(schedule)
        if not forward_only:
            _reductions_agree(lowered)
        prove_messages(lowered)
        chunks = tuple(_peak(program, (FORWARD,), RELEASING_KINDS) for program in schedule.programs)
        deferred = tuple(_peak(program, (INPUT_GRADIENT,), (WEIGHT_GRADIENT,)) for program in schedule.programs)
    return Proof(lowered, chunks, deferred)


def _complete(graph: Graph, forward_only: bool) -> None:
    """Every microbatch passes every stage of one replica exactly once forward, and once backward, whole or in parts.

    That no action is there twice, and each on its stage's own rank, the graph has seen to.
    """
    schedule = graph.schedule
    forward, whole, inputs, weights = (
        graph.numbers[kind] for kind in (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
    )
    stages = schedule.virtual_stages
    allowed = ((False, False, False),) if forward_only else ((True, False, False), (False, True, True))
    used = set()
    for i in range(schedule.microbatches):
        replica = _replica_of(graph, i)
        used.add(replica)
        first = graph.slot(Action(FORWARD, 0, i, 0, replica))
        for stage, slot in enumerate(range(first, first + stages)):
            if forward[slot] == MISSING:
                raise ScheduleError(
                    f"{Action(FORWARD, stage, i, 0, replica)} appears 0 times; every action runs exactly once"
                )
            found = (whole[slot] != MISSING, inputs[slot] != MISSING, weights[slot] != MISSING)
            if found not in allowed:
                wanted = "left out" if forward_only else "either one BW or one B and one W"
                numbers = "{:d} BW, {:d} B and {:d} W".format(*found)
                raise ScheduleError(f"the backward of stage {stage}, microbatch {i} must be {wanted}; found {numbers}")
    if len(used) < schedule.replicas and not forward_only:
        idle = min(set(range(schedule.replicas)) - used)
        raise ScheduleError(
            f"replica {idle} of the weights has no microbatch; {schedule.replicas} replicas need at least "
            f"{schedule.replicas} microbatches"
        )


def _runnable(schedule: Schedule) -> None:
    """Nothing that no engine carries out: a recomputation, a slice of the sequence, or a stage twice on one rank.

    The gradients of a stage's replicas are added up over ranks, so that two on the same one would not be.
    """
    for program in schedule.programs:
        for action in program:
            if action[0] == RECOMPUTE or action[3]:
                what = "recomputation" if action[0] == RECOMPUTE else "slice of the sequence"
                raise ScheduleError(f"{action} is a {what}, which no engine runs; F, B, W and BW of slice 0 would work")
    for stage in range(schedule.virtual_stages):
        hosts = [row[stage] for row in schedule.placement]
        if len(set(hosts)) < len(hosts):
            rank = next(host for host in hosts if hosts.count(host) > 1)
            raise ScheduleError(
                f"rank {rank} hosts stage {stage} of several replicas; each replica's must be on another rank"
            )


def _replica_of(graph: Graph, microbatch: int) -> int:
    """The one replica that the microbatch passes; replica 0 where it passes none."""
    schedule = graph.schedule
    if schedule.replicas == 1:
        return 0
    stages = schedule.virtual_stages
    passed = []
    for replica in range(schedule.replicas):
        low = graph.slot(Action(FORWARD, 0, microbatch, 0, replica))
        passed.append(any(n != MISSING for table in graph.numbers.values() for n in table[low : low + stages]))
    if sum(passed) > 1:
        both = " and ".join(str(replica) for replica, here in enumerate(passed) if here)
        raise ScheduleError(f"microbatch {microbatch} is on replicas {both}; it must pass all stages of one replica")
    return passed.index(True) if any(passed) else 0


def _peak(program: tuple[Action, ...], opens: tuple[str, ...], closes: tuple[str, ...]) -> int:
    live = peak = 0
    for action in program:
        if action[0] in opens:
            live += 1
            if live > peak:
                peak = live
        elif action[0] in closes:
            live -= 1
    return peak


def prove_messages(lowered: Lowered) -> None:
    """Prove that the lowered program ends even where a send returns only once its receive has been posted.

    Each pair of ranks is one in-order stream. A send waits until the other end has got to the message, a run or
    settle until both have: it has arrived.

    Raises:
        ScheduleError: two ranks disagree on the order of their messages, or the program deadlocks.
    """
    places = _places(lowered)
    messages, size = lowered.messages, len(lowered.codes)
    incoming, ends = messages.incoming, messages.ends
    issued = [[0] * size for _ in range(size)]  # [rank][peer]: messages of their stream that the rank has got to
    heads = [0] * size
    blockers = [MISSING] * size  # the message that each rank is waiting for, until the other end has got to it
    runnable = list(range(size))
    while runnable:
        rank = runnable.pop()
        codes, head, mine = lowered.codes[rank], heads[rank], issued[rank]
        end = len(codes)
        while head < end:
            kind, message = codes[head] & KIND_MASK, codes[head] >> KIND_BITS
            head += 1
            if kind == RUN:
                message = incoming[message]
                if message < 0:
                    continue
            elif kind == REDUCE:
                continue
            peer = ends[message] - rank
            if kind != RECEIVE:
                place = places[message]
                if place < 0 or issued[peer][rank] <= place or (kind != SEND and mine[peer] <= place):
                    blockers[rank] = message
                    head -= 1
                    break
                if kind != SEND:
                    continue
            mine[peer] += 1
            if blockers[peer] == message:
                blockers[peer] = MISSING
                runnable.append(peer)
        heads[rank] = head
    stuck = [rank for rank, head in enumerate(heads) if head < len(lowered.codes[rank])]
    if stuck:
        rank = min(stuck, key=lambda r: (heads[r], r))
        op = lowered.op(lowered.codes[rank][heads[rank]])
        what = f"run {op.action}" if op.action else f"{op.kind} the {op.message}"
        raise ScheduleError(
            f"schedule {lowered.schedule.name} deadlocks with blocking sends: rank {rank} cannot {what}: "
            f"it waits for the {messages[blockers[rank]]}"
        )


def _reductions_agree(lowered: Lowered) -> None:
    """The ranks that hold the replicas of a stage start the reductions that they share in one order."""
    schedule = lowered.schedule
    if schedule.replicas == 1:
        return
    actions = schedule.graph.actions
    order = [
        [actions[code >> KIND_BITS].stage for code in codes if code & KIND_MASK == REDUCE] for codes in lowered.codes
    ]
    for stage in range(schedule.virtual_stages):
        hosts = sorted({row[stage] for row in schedule.placement})
        for one, other in pairwise(hosts):
            mine, theirs = ([s for s in order[rank] if s in order[peer]] for rank, peer in ((one, other), (other, one)))
            if mine != theirs or stage not in mine:
                raise ScheduleError(f"ranks {one} and {other} do not agree on the order of their reductions")


def _places(lowered: Lowered) -> list[int]:
    """Every message's place in the one stream of its two ranks, on which both ends must agree; -1 where it has none."""
    ends, size = lowered.messages.ends, len(lowered.codes)
    issued: list[list[list[int]]] = []  # [rank][peer], in the order of the rank's program
    for rank, codes in enumerate(lowered.codes):
        streams: list[list[int]] = [[] for _ in range(size)]
        for code in codes:
            kind = code & KIND_MASK
            if kind in (RECEIVE, SEND):
                message = code >> KIND_BITS
                streams[ends[message] - rank].append(message)
        issued.append(streams)
    places = [MISSING] * len(lowered.messages)
    for low in range(size):
        for high in range(low + 1, size):
            if issued[low][high] != issued[high][low]:
                raise ScheduleError(f"ranks {low} and {high} do not agree on the order of their messages")
            for place, message in enumerate(issued[low][high]):
                places[message] = place
    return places
