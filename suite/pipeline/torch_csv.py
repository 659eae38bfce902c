"""The CSV of torch.distributed.pipelining, written and read: row i is rank i, a cell is one action, such as 0F1.

The letters are torch's: B is the full backward (our BW), I the input gradient (our B), W the weight gradient.
The form with communication has each message's two ends as cells too (0SEND_F1, 1RECV_F1) and, after the last
backward of a stage, 0REDUCE_GRAD. Reading is stricter than torch's, which accepts much that it cannot run.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suite.pipeline.lowering import Lowered
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
from suite.pipeline.torch_messages import REDUCE_GRAD, Cell, check_messages

_LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT_GRADIENT: "I", WEIGHT_GRADIENT: "W"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_NUMBER = "[0-9]{1,9}"
_CELL = re.compile(
    rf"({_NUMBER})(?:(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)({_NUMBER})|(UNSHARD|RESHARD|REDUCE_GRAD))", re.ASCII
)
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def as_torch_csv(schedule: Schedule) -> str:
    """The compute-only form.

    Raises:
        ValueError: an action that torch's format has no letter for.
    """
    return _table([_compute_cell(action) for action in program] for program in schedule.programs)


def as_torch_csv_comms(lowered: Lowered) -> str:
    """The form with communication: our lowered program's sends and receives in their order.

    Raises:
        ValueError: an action that torch's format has no letter for.
    """
    return _table(_with_messages(lowered, rank, program) for rank, program in enumerate(lowered.schedule.programs))


def _with_messages(lowered: Lowered, rank: int, program: Sequence[Action]) -> list[str]:
    last_backward = {action.stage: action for action in program if action.kind in RELEASING_KINDS}
    cells: list[str] = []
    reduction: list[str] = []  # stands behind the send of the action that completed the gradient, as torch has it
    for op in lowered.ops[rank]:
        if op.action:
            cells += [*reduction, _compute_cell(op.action)]
            last = last_backward.get(op.action.stage) == op.action
            reduction = [f"{op.action.stage}{REDUCE_GRAD}"] if last else []
        elif op.message and op.kind in ("send", "receive"):
            end, verb = (op.message.producer, "SEND") if op.kind == "send" else (op.message.consumer, "RECV")
            cells.append(f"{end.stage}{verb}_{'F' if end.kind == FORWARD else 'B'}{end.microbatch}")
    return cells + reduction


def _compute_cell(action: Action) -> str:
    if action.kind not in _LETTERS or action.slice or action.replica:
        raise ValueError(f"torch's CSV cannot express {action}; --format program-json can")
    return f"{action.stage}{_LETTERS[action.kind]}{action.microbatch}"


def _table(rows: Iterable[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


class _Compute(NamedTuple):
    """What the compute cells of a file say: where each stage lives, and how many microbatches there are."""

    placement: tuple[int, ...]
    microbatches: int


def parse_torch_csv(text: str, name: str) -> Schedule:
    """A schedule from either form; which one it is, is told by whether there is a cell of communication.

    Idle slots (empty cells) are dropped, overlapped pairs become their parts one after the other. Messages and
    reductions are checked and dropped, since our lowering places its own.

    Raises:
        ScheduleError: a cell that is none, or a program that must not run; the message names rank, action and rule.
    """
    rows = _rows(text)
    compute = [[cell for cell in row if cell and cell.kind in _KINDS] for row in rows]
    placement, microbatches = _stages(compute)
    _complete(compute, placement, microbatches)
    if any(cell and cell.kind not in _KINDS for row in rows for cell in row):
        check_messages([_without_gaps(rank, row) for rank, row in enumerate(rows)], placement)
    programs = tuple(
        tuple(Action(_KINDS[cell.kind], cell.stage, cell.microbatch or 0) for cell in row) for row in compute
    )
    return Schedule(name, len(rows), microbatches, len(placement) // len(rows), (placement,), programs)


def _rows(text: str) -> list[list[Cell | None]]:
    """The cells of every row; None is an idle slot."""
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ScheduleError(f"is not a CSV file: {error}") from None
    while table and not table[-1]:
        table.pop()  # empty lines at the end
    if table and not any(_CELL.fullmatch(token.strip()) or _OVERLAP.fullmatch(token.strip()) for token in table[0]):
        raise ScheduleError(
            f"row 1 has no action (it starts with {_shown(table[0][0] if table[0] else '')}): torch's CSV has no "
            "header, row 1 is rank 0, and a cell is like 0F1"
        )
    return [
        [cell for place, token in enumerate(row, 1) for cell in _cells(rank, place, token.strip())]
        for rank, row in enumerate(table)
    ]


def _cells(rank: int, place: int, token: str) -> list[Cell | None]:
    """One cell's action, or the actions of an overlapped pair."""
    if not token:
        return [None]
    pair = _OVERLAP.fullmatch(token)
    cells = [_cell(part.strip()) for part in pair[1].split(";")] if pair else [_cell(token)]
    if any(cell is None or (pair and cell.kind not in _KINDS) for cell in cells):
        raise ScheduleError(
            f"rank {rank}, cell {place}: {_shown(token)} is no action; a cell is <stage><F|B|I|W><microbatch> such as "
            "0F1, <stage><SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, <stage>REDUCE_GRAD, or (0F1;3B0)OVERLAP_F_B"
        )
    return cells


def _cell(token: str) -> Cell | None:
    match = _CELL.fullmatch(token)
    if not match:
        return None
    stage, kind, microbatch, alone = match.groups()
    return Cell(alone, int(stage)) if alone else Cell(kind, int(stage), int(microbatch))


def _shown(token: str) -> str:
    return repr(token if len(token) <= 40 else token[:37] + "...")


def _without_gaps(rank: int, row: list[Cell | None]) -> list[Cell]:
    """The row of a file with communication, where an idle slot has no meaning."""
    before = None
    for cell in row:
        if cell is None:
            where = f"after {before}" if before else "at the start of the row"
            raise ScheduleError(
                f"rank {rank}: empty cell {where}; a file with communication has no idle slots, and torch refuses them"
            )
        before = cell
    return [cell for cell in row if cell]


def _stages(rows: list[list[Cell]]) -> _Compute:
    """Where each stage lives, and how many microbatches there are."""
    hosts: dict[int, Counter[int]] = {}
    for rank, row in enumerate(rows):
        if not row:
            raise ScheduleError(f"rank {rank} has no actions; every row has those of one rank")
        for cell in row:
            hosts.setdefault(cell.stage, Counter())[rank] += 1
    if not rows:
        raise ScheduleError("is empty; a schedule has a row of actions for every rank")
    _no_gap("stage", hosts)
    placement = tuple(hosts[stage].most_common(1)[0][0] for stage in range(len(hosts)))
    for rank, row in enumerate(rows):
        for cell in row:
            if placement[cell.stage] != rank:
                raise ScheduleError(
                    f"rank {rank}: {cell} is on the wrong rank: stage {cell.stage} is on rank {placement[cell.stage]}, "
                    "and a stage lives on one rank"
                )
    counts = Counter(placement)
    for rank, count in sorted(counts.items()):
        if count != counts[0]:
            raise ScheduleError(
                f"rank {rank} hosts {count} stages, but rank 0 hosts {counts[0]}; all ranks host as many"
            )
    microbatches = {cell.microbatch for row in rows for cell in row if cell.microbatch is not None}
    _no_gap("microbatch", microbatches)
    return _Compute(placement, len(microbatches))


def _no_gap(what: str, numbers: Iterable[int]) -> None:
    for wanted, found in enumerate(sorted(numbers)):
        if found != wanted:
            raise ScheduleError(f"{what} {wanted} has no action in any row, but {what} {found} has; they count from 0")


def _complete(rows: list[list[Cell]], placement: tuple[int, ...], microbatches: int) -> None:
    """Every microbatch passes every stage exactly once forward, and once backward in one action or in two."""
    counts = Counter(cell for row in rows for cell in row)
    for cell, count in counts.items():
        if count > 1:
            raise ScheduleError(
                f"rank {placement[cell.stage]}: {cell} appears {count} times; every action runs exactly once"
            )
    for stage, rank in enumerate(placement):
        for i in range(microbatches):
            forward, whole, inputs, weights = (Cell(letter, stage, i) for letter in "FBIW")
            if forward not in counts:
                raise ScheduleError(f"rank {rank}: {forward} is missing; every microbatch passes every stage forward")
            split = [cell for cell in (inputs, weights) if cell in counts]
            if whole in counts and split:
                raise ScheduleError(
                    f"rank {rank}: {whole} and {split[0]} are both there; a backward is either B, or I and W"
                )
            if whole not in counts and len(split) < 2:
                missing = whole if not split else weights if split == [inputs] else inputs
                rule = "every microbatch passes every stage backward" if not split else f"{split[0]} is only half of it"
                raise ScheduleError(f"rank {rank}: {missing} is missing; {rule}")
