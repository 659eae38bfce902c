"""Synthetic launches in turns, as `suite regress` leaves them: records of two sides that differ by what a test says."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from report_records import record_of

from suite.records.store import Store

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)


def launch_of(place, seconds, layout=(1, 1, 1), schedule="1f1b", **changes):
    """A record of the launch that began `place` minutes after the first."""
    plain = record_of(layout, schedule, launch=place)
    samples = [seconds * (1 + 0.001 * step) for step in (9, 9, -2, -1, 0, 1, 2)]
    fields = {
        "iterations": {**plain.iterations.model_dump(), "seconds": samples},
        "environment": {**plain.environment, **changes.pop("environment", {})},
        "started": (BEGIN + timedelta(minutes=place)).isoformat(),
        "finished": (BEGIN + timedelta(minutes=place, seconds=50)).isoformat(),
    }
    return plain.model_validate(plain.model_dump(by_alias=True) | fields | changes)


def keep(folder, record, revision="abc1234"):
    return Store(folder).write(record, revision)


def sides(base, candidate, change=0.0, pairs=8, deviation=0.005, **fields):
    """Keep pairs of launches, A B then B A, in two folders; `change` makes the candidate slower."""
    draw = np.random.default_rng(pairs)
    for pair in range(pairs):
        for turn in range(2):
            second = turn != pair % 2
            seconds = 0.1 * np.exp(draw.normal(0, deviation)) * (1 + change if second else 1)
            record = launch_of(2 * pair + turn, float(seconds), **fields)
            keep(Path(candidate if second else base), record, "def5678" if second else "abc1234")
