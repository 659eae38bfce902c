"""The state of a sweep, from what is on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.experiment.expansion import Planned
from suite.launch.inputs import Inputs
from suite.launch.job import live_job
from suite.records.store import StoredRecord


@dataclass(frozen=True)
class PointState:
    """Where one point stands: ok, starting, running, missing, invalid, or the status of its last record."""

    planned: Planned
    state: str  # starting: a launch that has finished no iteration yet
    launches: int  # with status ok, on the files that the point names
    reason: str | None
    iterations: int | None  # finished so far, of a running launch

    def as_json(self) -> dict[str, Any]:
        """The state for `--json`."""
        return {
            "point_id": self.planned.point_id,
            "label": self.planned.label,
            "state": self.state,
            "launches": self.launches,
            "reason": self.reason,
            "iterations": self.iterations,
        }


def states(points: Sequence[Planned], records: Sequence[StoredRecord], folders: Sequence[Path]) -> list[PointState]:
    """The state of every point; `folders` are the stores' folders of this experiment, scale and source."""
    inputs = Inputs()
    return [_state(one, [r for r in records if r.point_id == one.point_id], inputs, folders) for one in points]


def _state(planned: Planned, records: list[StoredRecord], inputs: Inputs, folders: Sequence[Path]) -> PointState:
    ok = sum(record.status == "ok" for record in records)
    if planned.point is None or planned.reasons:
        return PointState(planned, "invalid", ok, "; ".join(planned.reasons), None)
    others = [inputs.other(record, planned.point) for record in records if record.status == "ok"]
    ok = others.count(None)
    for job in filter(None, (live_job(folder / planned.point_id) for folder in folders)):
        finished = len(job.progress(0))
        return PointState(planned, "running" if finished else "starting", ok, None, finished)
    if ok >= planned.point.measure.launches:
        return PointState(planned, "ok", ok, None, None)
    last = max((r for r in records if r.status != "ok"), key=lambda r: r.finished, default=None)
    if last is None:
        return PointState(planned, "missing", ok, next(filter(None, others), None), None)
    return PointState(planned, last.status, ok, last.reason, None)
