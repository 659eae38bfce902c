"""What `suite history` does: the series of an experiment's points, their steps, and the commits at each."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.ending import DONE, NOTHING_MEASURED, print_json, print_skipped
from suite.regression.history import Series, Step, commits_between, histories
from suite.regression.sides import Scope, records_of


def history_of(experiment: str, scale: str | None, least: float, folders: Sequence[Path], as_json: bool) -> int:
    """Print every point's history; the exit code."""
    records, skipped = records_of(folders, Scope(folders, experiment, scale))
    series, edited = histories(records, least)
    print_skipped([*skipped, *edited])
    if as_json:
        print_json([_as_json(one) for one in series])
    elif series:
        print("\n\n".join(_text(one) for one in series))
    if not series:
        print(f"{experiment}: nothing was measured; no launch has a timed iteration", file=sys.stderr)
        return NOTHING_MEASURED
    return DONE


def _text(series: Series) -> str:
    key, first, last = series.key, series.runs[0], series.runs[-1]
    change = 100 * math.expm1(last.log - first.log)
    lines = [
        f"{key.experiment}/{key.scale} {series.label} {key.point_id} {key.source}, machine {series.machine}: "
        f"{len(series.runs)} revisions, {first.revision} to {last.revision}, {change:+.1f}% in all"
    ]
    for step in series.steps:
        lines.append(f"  {100 * step.change:+.1f}% at {step.after}, after {step.before}")
        lines += [f"    {commit}" for commit in _commits(step)]
    if not series.steps:
        lines.append("  no step")
    return "\n".join(lines)


def _commits(step: Step) -> list[str]:
    return commits_between(step.before, step.after) or ["the commits between them are not known here"]


def _as_json(series: Series) -> dict[str, Any]:
    key = series.key
    return {
        "experiment": key.experiment,
        "scale": key.scale,
        "source": key.source,
        "point_id": key.point_id,
        "label": series.label,
        "machine": series.machine,
        "runs": [
            {
                "revision": run.revision,
                "finished": run.ended,
                "seconds_per_token": math.exp(run.log),
                "launches": run.launches,
            }
            for run in series.runs
        ],
        "steps": [
            {
                "at": step.at,
                "change": step.change,
                "before": step.before,
                "after": step.after,
                "commits": commits_between(step.before, step.after),
            }
            for step in series.steps
        ],
    }
