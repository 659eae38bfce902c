"""Schedules as files: the program as JSON, which loses nothing, and the reading of every form that can be read back."""

import json
import re
from pathlib import Path
from typing import Any

from suite.pipeline.program import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    MOST_ACTIONS,
    RECOMPUTE,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    ScheduleError,
)
from suite.pipeline.proof import prove
from suite.pipeline.torch_csv import parse_torch_csv

_MOST_BYTES = 64 * 2**20
_FORM = "suite schedule 1"
_FIELDS = ("form", "name", "stages", "microbatches", "chunks", "placement", "programs")
_KINDS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD, RECOMPUTE)
_ACTION = re.compile(rf"({'|'.join(_KINDS)}) ([0-9]{{1,9}})\.([0-9]{{1,9}})(?:/([0-9]{{1,9}}))?('*)")


def as_program_json(schedule: Schedule) -> str:
    """The schedule as JSON, a line a rank: actions like `BW 3.7`, with `/2` for slice 2 and `'` for replica 1."""
    head = {
        "form": _FORM,
        "name": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "placement": schedule.placement,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    programs = ",\n".join("  " + json.dumps([str(action) for action in program]) for program in schedule.programs)
    return "\n".join(["{", *lines, ' "programs": [', programs, " ]", "}"]) + "\n"


def read_schedule(path: Path) -> Schedule:
    """The schedule in a file: JSON of `as_program_json`, or torch's CSV in either form; its content says which.

    A CSV does not say its schedule's name; it is called like the file.

    Raises:
        ScheduleError: the file is no such thing, or holds a schedule that must not run; one sentence with the file,
            the rank, the action and the rule.
        OSError: the file cannot be read.
    """
    try:
        text = _text(path)
        schedule = _parse_json(text) if text.lstrip().startswith("{") else parse_torch_csv(text, path.stem)
        prove(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    return schedule


def _text(path: Path) -> str:
    """The file's text, with any line ends and with or without a byte order mark."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ScheduleError(f"is larger than {_MOST_BYTES >> 20} MiB, more than any schedule that can be proved")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ScheduleError("is not a text file; torch's CSV or the JSON of --format program-json can be read")
    if not text.strip():
        raise ScheduleError("is empty; a schedule has actions for every rank")
    cells = text.count(",") + text.count(";") + text.count("\n")
    if cells > MOST_ACTIONS:
        raise ScheduleError(f"has about {cells} cells; at most {MOST_ACTIONS} can be read")
    if text.startswith("rank,kind,stage,"):
        raise ScheduleError("is a table of times (--format csv), which is not read back; --format program-json is")
    return text


def _parse_json(text: str) -> Schedule:
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except ScheduleError:
        raise
    except json.JSONDecodeError as error:
        raise ScheduleError(f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ScheduleError("is JSON with numbers too long or lists too deep for a schedule") from None
    if found.get("form") != _FORM:
        raise ScheduleError(
            f'is JSON, but no schedule: its "form" is not "{_FORM}", which --format program-json writes'
        )
    if set(found) != set(_FIELDS):
        odd = sorted(set(found) ^ set(_FIELDS))[0]
        raise ScheduleError(
            f'field "{odd}" is {"unknown" if odd in found else "missing"}; a schedule has exactly {_FIELDS}'
        )
    if not isinstance(found["name"], str) or not found["name"].isprintable():
        raise ScheduleError(f'"name" is {json.dumps(found["name"])[:40]}; it must be printable text')
    stages, microbatches, chunks = (_count(found, key) for key in ("stages", "microbatches", "chunks"))
    if stages * chunks * microbatches > MOST_ACTIONS:
        raise ScheduleError(
            f"has {stages} stages, {chunks} chunks and {microbatches} microbatches; their product may be "
            f"at most {MOST_ACTIONS}"
        )
    placement = _placement(found["placement"], stages, chunks)
    programs = _programs(found["programs"], placement, stages, microbatches)
    return Schedule(found["name"], stages, microbatches, chunks, placement, programs)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ScheduleError(f'field "{twice}" is there twice')
    return fields


def _count(found: dict[str, Any], key: str) -> int:
    value = found[key]
    if type(value) is not int or value < 1:
        raise ScheduleError(f'"{key}" is {json.dumps(value)[:40]}; it must be a whole number of at least 1')
    return value


def _placement(found: Any, stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """`placement[replica][stage]`, each replica with every rank as often as there are chunks."""
    if not isinstance(found, list) or not found or not all(isinstance(row, list) for row in found):
        raise ScheduleError('"placement" must be a list with, for each replica, the list of the ranks of its stages')
    for replica, row in enumerate(found):
        if any(type(rank) is not int for rank in row) or sorted(row) != sorted(list(range(stages)) * chunks):
            raise ScheduleError(
                f'"placement" of replica {replica} must have each of the ranks 0 to {stages - 1} {chunks} times'
            )
    return tuple(tuple(row) for row in found)


def _programs(
    found: Any, placement: tuple[tuple[int, ...], ...], stages: int, microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    if not isinstance(found, list) or len(found) != stages or not all(isinstance(row, list) for row in found):
        raise ScheduleError(f'"programs" must be a list of {stages} lists of actions, one for each rank')
    programs = []
    for rank, row in enumerate(found):
        seen: dict[Action, None] = {}
        for place, text in enumerate(row, 1):
            action = _action(rank, place, text)
            _in_place(rank, action, placement, microbatches)
            if action in seen:
                raise ScheduleError(f"rank {rank}: {action} appears twice; every action runs exactly once")
            seen[action] = None
        if not seen:
            raise ScheduleError(f"rank {rank} has no actions")
        programs.append(tuple(seen))
    return tuple(programs)


def _action(rank: int, place: int, text: Any) -> Action:
    match = _ACTION.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise ScheduleError(
            f"rank {rank}, action {place}: {json.dumps(text)[:40]} is no action; one is <kind> <stage>.<microbatch> "
            f"with a kind of {', '.join(_KINDS)}, such as BW 3.7"
        )
    kind, stage, microbatch, part, replica = match.groups()
    return Action(kind, int(stage), int(microbatch), int(part or 0), len(replica))


def _in_place(rank: int, action: Action, placement: tuple[tuple[int, ...], ...], microbatches: int) -> None:
    if action.replica >= len(placement) or action.stage >= len(placement[0]) or action.microbatch >= microbatches:
        raise ScheduleError(
            f"rank {rank}: {action} is outside the schedule's {len(placement[0])} virtual stages, {microbatches} "
            f"microbatches and {len(placement)} replicas"
        )
    host = placement[action.replica][action.stage]
    if host != rank:
        raise ScheduleError(f"rank {rank}: {action} is on the wrong rank: its stage is on rank {host}")
