"""The proof that a schedule may run: complete, placed, free of deadlock, with its peak of live activations."""

from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from suite.pipeline.collection import no_collection
from suite.pipeline.graph import BW, KINDS, MISSING, B, F, Graph, W
from suite.pipeline.lowering import KIND_BITS, KIND_MASK, RECEIVE, REDUCE, RUN, SEND, SETTLE, Lowered, lower
from suite.pipeline.program import FORWARD, RECOMPUTE, Action, Schedule, ScheduleError
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
    return Proof(lowered, _peaks(schedule.graph, {F: 1, BW: -1, W: -1}), _peaks(schedule.graph, {B: 1, W: -1}))


def _complete(graph: Graph, forward_only: bool) -> None:
    """Every microbatch passes every stage of one replica exactly once forward, and once backward, whole or in parts.

    That no action is there twice, and each on its stage's own rank, the graph has seen to.
    """
    schedule = graph.schedule
    there = graph.table[:, :, 0] != MISSING  # by kind, replica, microbatch, stage
    passed = there.any(axis=(0, 3))
    replicas = passed.argmax(axis=0)
    mine = there[:, replicas, np.arange(schedule.microbatches)]
    none, either = ~(mine[BW] | mine[B] | mine[W]), (mine[BW] ^ mine[B]) & (mine[B] == mine[W])
    fine = mine[F] & (none if forward_only else either)
    for i in np.flatnonzero((passed.sum(axis=0) > 1) | ~fine.all(axis=1)).tolist():
        raise ScheduleError(_incomplete(i, passed[:, i], mine[:, i], fine[i], forward_only))
    idle = set(range(schedule.replicas)) - set(replicas.tolist())
    if idle and not forward_only:
        raise ScheduleError(
            f"replica {min(idle)} of the weights has no microbatch; {schedule.replicas} replicas need at least "
            f"{schedule.replicas} microbatches"
        )


def _incomplete(i: int, passed: np.ndarray, there: np.ndarray, fine: np.ndarray, forward_only: bool) -> str:
    """Why microbatch i does not pass every stage of one replica; the arrays are its part of those in `_complete`."""
    if passed.sum() > 1:
        both = " and ".join(map(str, np.flatnonzero(passed).tolist()))
        return f"microbatch {i} is on replicas {both}; it must pass all stages of one replica"
    stage = int(fine.argmin())
    if not there[F, stage]:
        return f"{Action(FORWARD, stage, i, 0, int(passed.argmax()))} appears 0 times; every action runs exactly once"
    wanted = "left out" if forward_only else "either one BW or one B and one W"
    found = "{:d} BW, {:d} B and {:d} W".format(*there[[BW, B, W], stage])
    return f"the backward of stage {stage}, microbatch {i} must be {wanted}; found {found}"


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


def _peaks(graph: Graph, changes: dict[int, int]) -> tuple[int, ...]:
    """By rank, the largest number of what some kinds of action add to or take from."""
    change = np.array([changes.get(kind, 0) for kind in range(len(KINDS))])[graph.kinds]
    return tuple(int(of_rank.cumsum().max(initial=0)) for of_rank in np.split(change, graph.first[1:-1]))


def prove_messages(lowered: Lowered) -> None:
    """Prove that the lowered program ends even where a send returns only once its receive has been posted.

    Each pair of ranks is one in-order stream. A send waits until the other end has got to the message, a run or
    settle until both have: it has arrived.

    Raises:
        ScheduleError: two ranks disagree on the order of their messages, or the program deadlocks.
    """
    codes = np.concatenate([np.asarray(program, int) for program in lowered.codes])
    first = np.cumsum([0, *map(len, lowered.codes)])  # of each rank among the instructions of all
    ranks = np.repeat(np.arange(len(lowered.codes)), np.diff(first))
    awaited = _awaited(lowered, codes, ranks)
    waits = np.flatnonzero(awaited != MISSING)
    targets, owners = awaited[waits].tolist(), np.append(ranks, 0)[awaited[waits]].tolist()
    bounds, first = np.searchsorted(waits, first).tolist(), first.tolist()
    places, heads, limits = waits.tolist(), bounds[:-1], bounds[1:]
    reached = first[:-1]  # by rank, the instruction that it has come to
    asleep: list[list[int]] = [[] for _ in heads]  # by rank, those that wait for it
    runnable = list(range(len(heads)))
    while runnable:
        rank = runnable.pop()
        head, limit = heads[rank], limits[rank]
        while head < limit and reached[owners[head]] > targets[head]:
            head += 1
        heads[rank] = head
        if head < limit:
            reached[rank] = places[head]
            asleep[owners[head]].append(rank)
        else:
            reached[rank] = first[rank + 1]
        for other in asleep[rank].copy():
            if targets[heads[other]] < reached[rank]:
                asleep[rank].remove(other)
                runnable.append(other)
    stuck = [rank for rank, place in enumerate(reached) if place < first[rank + 1]]
    if stuck:
        rank = min(stuck, key=lambda r: (reached[r] - first[r], r))
        op = lowered.op(int(codes[reached[rank]]))
        what = f"run {op.action}" if op.action else f"{op.kind} the {op.message}"
        raise ScheduleError(
            f"schedule {lowered.schedule.name} deadlocks with blocking sends: rank {rank} cannot {what}: "
            f"it waits for the {op.message}"
        )


def _reductions_agree(lowered: Lowered) -> None:
    """The ranks that hold the replicas of a stage start the reductions that they share in one order."""
    schedule = lowered.schedule
    if schedule.replicas == 1:
        return
    actions = schedule.graph.actions
    order = [
        [actions[last].stage for last in (codes[codes & KIND_MASK == REDUCE] >> KIND_BITS).tolist()]
        for codes in map(np.asarray, lowered.codes)
    ]
    for stage in range(schedule.virtual_stages):
        hosts = sorted({row[stage] for row in schedule.placement})
        for one, other in pairwise(hosts):
            mine, theirs = ([s for s in order[rank] if s in order[peer]] for rank, peer in ((one, other), (other, one)))
            if mine != theirs or stage not in mine:
                raise ScheduleError(f"ranks {one} and {other} do not agree on the order of their reductions")


def _awaited(lowered: Lowered, codes: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """By instruction of all ranks, the instruction of the other rank that it waits for; MISSING where for none.

    One that would have to wait for ever has the number after the last. Both ends must have the messages of their stream
    in one order: a message's instructions at both ends are those in the same place of it.
    """
    messages, size = lowered.messages, len(lowered.codes)
    kinds, numbers = codes & KIND_MASK, codes >> KIND_BITS
    issues = np.flatnonzero((kinds == RECEIVE) | (kinds == SEND))
    issued, here = numbers[issues], ranks[issues]
    there = messages.sources[issued] + messages.destinations[issued] - here
    pairs = np.minimum(here, there) * size + np.maximum(here, there)
    order = np.lexsort((pairs, here > there))
    low, high = np.split(order, [np.count_nonzero(here < there)])  # of the lower rank of each pair, and of the higher
    if not (np.array_equal(pairs[low], pairs[high]) and np.array_equal(issued[low], issued[high])):
        streams = (zip(pairs[end].tolist(), issued[end].tolist(), strict=True) for end in (low, high))
        odd = next(min(ends)[0] for ends in zip_longest(*streams, fillvalue=(size * size,)) if ends[0] != ends[1])
        one, other = divmod(odd, size)
        raise ScheduleError(f"ranks {one} and {other} do not agree on the order of their messages")
    awaited = np.full(len(codes), MISSING)
    awaited[issues[low]], awaited[issues[high]] = issues[high], issues[low]
    at = np.full((2, len(messages)), len(codes))  # where a message's destination, and its source, gets to it
    at[(here != messages.destinations[issued]).astype(int), issued] = issues
    awaited[kinds == RECEIVE] = MISSING
    runs = np.flatnonzero(kinds == RUN)
    numbers[runs] = messages.incoming[numbers[runs]]
    waits = np.flatnonzero(((kinds == RUN) & (numbers != MISSING)) | (kinds == SETTLE))
    source = (messages.destinations[numbers[waits]] != ranks[waits]).astype(int)
    own, other = at[source, numbers[waits]], at[1 - source, numbers[waits]]
    awaited[waits] = np.where(own < waits, other, len(codes))
    sent = waits[(own < waits) & (kinds[np.minimum(own, waits)] == SEND)]
    awaited[sent] = MISSING  # the other end has got to what has been sent: the send has waited for that
    return awaited
