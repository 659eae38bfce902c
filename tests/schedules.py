"""Schedules as tests write and look at them."""

import re
from typing import Any

from suite.experiment.point import Schedule as Options
from suite.pipeline.generators import generate
from suite.pipeline.program import Action, Schedule


def built(name: str, p: int, m: int, **fields: Any) -> Schedule:
    """The schedule as an experiment asks for it."""
    return generate(Options(name=name, **fields), p, m)


def actions(text: str, replicas: int = 1) -> tuple[Action, ...]:
    """Actions from "F0.1 BW1.0 F3.0'"; the quote is replica 1. Microbatch j of replica d of two is number 2j+d."""
    found = re.findall(r"(BW|F|B|W)(\d+)\.(\d+)('?)", text)
    return tuple(Action(kind, int(s), replicas * int(j) + len(up), replica=len(up)) for kind, s, j, up in found)


def peaks(schedule: Schedule) -> list[float]:
    """By rank, the most activations alive at once in shares of a rank: taken by F, given back by W or BW."""
    most = []
    for program in schedule.programs:
        live = peak = 0
        for action in program:
            live += (action.kind == "F") - (action.kind in ("W", "BW"))
            peak = max(peak, live)
        most.append(peak / schedule.chunks)
    return most
