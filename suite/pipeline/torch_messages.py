"""The messages and reductions of a torch CSV with communication: each one's two ends in place, and no deadlock.

torch itself checks none of this: a file without a SEND hangs, and one without REDUCE_GRAD trains with gradients
that are too large.
"""

from typing import NamedTuple

from suite.pipeline.program import ScheduleError

REDUCE_GRAD = "REDUCE_GRAD"
_SHARDING = ("UNSHARD", "RESHARD")
_COMPUTE = "FBIW"


class Cell(NamedTuple):
    """One cell: torch's letters, the global virtual stage, and the microbatch where the kind has one."""

    kind: str
    stage: int
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}" + ("" if self.microbatch is None else str(self.microbatch))


class _Transfer(NamedTuple):
    """A message that the compute actions need: its two cells and the actions that they stand between."""

    producer: Cell
    send: Cell
    receive: Cell
    consumer: Cell
    source: int
    destination: int


def check_messages(rows: list[list[Cell]], placement: tuple[int, ...]) -> None:
    """Check a file whose compute actions are complete and in place.

    Raises:
        ScheduleError: a cell is missing, doubled, superfluous or at the wrong place, two ranks do not agree on the
            order of their messages, or the order hangs where a send blocks until its receive has been posted.
    """
    places = _places(rows, placement)
    transfers = _transfers(places, placement)
    for transfer in transfers:
        _between(transfer, places)
    ends = {end: transfer for transfer in transfers for end in (transfer.send, transfer.receive)}
    for cell in places:
        if "_F" in cell.kind or "_B" in cell.kind:
            _needed(cell, ends, placement)
    _reductions(rows, places, placement)
    _same_order(rows, ends)
    _no_deadlock(rows, ends)


def _places(rows: list[list[Cell]], placement: tuple[int, ...]) -> dict[Cell, int]:
    """Where every cell stands in its row; all are on their stage's rank, and none is there twice."""
    places: dict[Cell, int] = {}
    for rank, row in enumerate(rows):
        for place, cell in enumerate(row):
            if cell.stage >= len(placement):
                raise ScheduleError(f"rank {rank}: {cell}: there is no stage {cell.stage}; no row computes it")
            if placement[cell.stage] != rank:
                raise ScheduleError(
                    f"rank {rank}: {cell} is on the wrong rank: stage {cell.stage} is on rank {placement[cell.stage]}"
                )
            if cell.kind in _SHARDING:
                continue
            if cell in places:
                raise ScheduleError(f"rank {rank}: {cell} appears twice; it is needed exactly once")
            places[cell] = place
    return places


def _transfers(places: dict[Cell, int], placement: tuple[int, ...]) -> list[_Transfer]:
    """Every message between two ranks that the compute actions need."""
    transfers = []
    for producer in places:
        kind, stage, i = producer
        other = {"F": stage + 1, "B": stage - 1, "I": stage - 1}.get(kind, -1)
        if not 0 <= other < len(placement) or placement[other] == placement[stage]:
            continue
        letter = "F" if kind == "F" else "B"
        consumer = Cell(letter, other, i)
        if consumer not in places:
            consumer = Cell("I", other, i)
        send, receive = Cell(f"SEND_{letter}", stage, i), Cell(f"RECV_{letter}", other, i)
        transfers.append(_Transfer(producer, send, receive, consumer, placement[stage], placement[other]))
    return transfers


def _between(transfer: _Transfer, places: dict[Cell, int]) -> None:
    producer, send, receive, consumer, source, destination = transfer
    if send not in places and receive not in places:
        raise ScheduleError(
            f"rank {source}: {send} is missing, and so is {receive} on rank {destination}; {consumer} needs what "
            f"{producer} makes"
        )
    if send not in places:
        raise ScheduleError(f"rank {source}: {send} is missing; {receive} of rank {destination} would wait for ever")
    if receive not in places:
        raise ScheduleError(f"rank {destination}: {receive} is missing; nobody takes {send} of rank {source}")
    if places[send] < places[producer]:
        raise ScheduleError(f"rank {source}: {send} stands before {producer}, which makes what it sends")
    if places[receive] > places[consumer]:
        raise ScheduleError(f"rank {destination}: {receive} stands after {consumer}, which uses it")


def _needed(cell: Cell, ends: dict[Cell, _Transfer], placement: tuple[int, ...]) -> None:
    if cell in ends:
        return
    step = 1 if cell.kind in ("SEND_F", "RECV_B") else -1
    other, rank = cell.stage + step, placement[cell.stage]
    if not 0 <= other < len(placement):
        why = f"stage {cell.stage} has no neighbour on that side"
    elif placement[other] == rank:
        why = f"stages {cell.stage} and {other} are on one rank, which needs no message"
    else:
        why = f"there is no microbatch {cell.microbatch}"
    raise ScheduleError(f"rank {rank}: {cell} belongs to no message: {why}")


def _reductions(rows: list[list[Cell]], places: dict[Cell, int], placement: tuple[int, ...]) -> None:
    last = {cell.stage: cell for row in rows for cell in row if cell.kind in ("B", "W")}
    for stage, rank in enumerate(placement):
        reduction = Cell(REDUCE_GRAD, stage)
        if reduction not in places:
            raise ScheduleError(
                f"rank {rank}: {reduction} is missing; without it the gradients of stage {stage} are never averaged "
                "over its microbatches"
            )
        if places[reduction] < places[last[stage]]:
            raise ScheduleError(f"rank {rank}: {reduction} stands before {last[stage]}, the stage's last backward")


def _same_order(rows: list[list[Cell]], ends: dict[Cell, _Transfer]) -> None:
    """Both ends of a pair of ranks have its messages in one order: nothing else tells them apart."""
    streams: dict[tuple[int, int], list[Cell]] = {}  # (rank, peer) -> the sends of the pair, as the rank has them
    for rank, row in enumerate(rows):
        for cell in row:
            if cell in ends:
                _, send, _, _, source, destination = ends[cell]
                streams.setdefault((rank, destination if source == rank else source), []).append(send)
    for (rank, peer), stream in streams.items():
        for number, (mine, theirs) in enumerate(zip(stream, streams[peer, rank], strict=True), 1):
            if mine != theirs:
                raise ScheduleError(
                    f"ranks {rank} and {peer} disagree on the order of their messages: number {number} is {mine} in "
                    f"the row of rank {rank}, but {theirs} in that of rank {peer}"
                )


def _no_deadlock(rows: list[list[Cell]], ends: dict[Cell, _Transfer]) -> None:
    """Step all ranks, each as far as it gets: a send waits for its receive, an action for the sends of its inputs."""
    awaited = {transfer.consumer: transfer.send for transfer in ends.values()}
    awaited |= {transfer.send: transfer.receive for transfer in ends.values()}
    heads = [0] * len(rows)
    passed: set[Cell] = set()
    sleepers: dict[Cell, int] = {}  # the cell of another rank that must have been passed -> who waits for it
    runnable = list(range(len(rows)))
    while runnable:
        rank = runnable.pop()
        while heads[rank] < len(rows[rank]):
            cell = rows[rank][heads[rank]]
            needed = awaited.get(cell)
            if needed and needed not in passed:
                sleepers[needed] = rank
                break
            heads[rank] += 1
            passed.add(cell)
            if cell in sleepers:
                runnable.append(sleepers.pop(cell))
    stuck = [rank for rank, head in enumerate(heads) if head < len(rows[rank])]
    if stuck:
        rank = min(stuck, key=lambda r: (heads[r], r))
        cell = rows[rank][heads[rank]]
        needed = awaited[cell]
        other = ends[needed].destination if ends[needed].receive == needed else ends[needed].source
        raise ScheduleError(
            f"the order deadlocks with blocking sends: rank {rank} cannot pass {cell} before rank {other} passes "
            f"{needed}, but that one is stuck at {rows[other][heads[other]]}"
        )
