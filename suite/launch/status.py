"""The state of a sweep, from what is on disk and what SLURM says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.experiment.expansion import Planned
from suite.launch.inputs import Inputs
from suite.launch.job import JobFolder
from suite.launch.slurm.settle import Jobs
from suite.launch.slurm.submission import Submission
from suite.records.store import StoredRecord

UNDER_WAY = ("queued", "starting", "running")


@dataclass(frozen=True)
class PointState:
    """Where one point stands: ok, queued, starting, running, missing, invalid, or the status of its last record."""

    planned: Planned
    state: str  # queued: SLURM has it waiting; starting: a launch that has finished no iteration yet
    launches: int  # with status ok, on the files that the point names
    reason: str | None  # of what is under way, who runs it and why it waits
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


def launches_of(points: Sequence[Planned], folders: Sequence[Path]) -> list[JobFolder]:
    """Every launch's folder of some points; `folders` are the stores' folders of this experiment, scale and source."""
    return [one for point in points for folder in folders for one in JobFolder.all_of(folder / point.point_id)]


def states(
    points: Sequence[Planned], records: Sequence[StoredRecord], folders: Sequence[Path], jobs: Jobs
) -> list[PointState]:
    """The state of every point; `folders` as in `launches_of`."""
    inputs = Inputs()
    return [
        _state(one, [r for r in records if r.point_id == one.point_id], inputs, launches_of([one], folders), jobs)
        for one in points
    ]


def _state(
    planned: Planned, records: list[StoredRecord], inputs: Inputs, launches: list[JobFolder], jobs: Jobs
) -> PointState:
    ok = sum(record.status == "ok" for record in records)
    if planned.point is None or planned.reasons:
        return PointState(planned, "invalid", ok, "; ".join(planned.reasons), None)
    others = [inputs.other(record, planned.point) for record in records if record.status == "ok"]
    ok = others.count(None)
    under_way = [_under_way(planned, ok, one, who, jobs) for one in launches if (who := jobs.under_way(one))]
    if under_way:
        return max(under_way, key=lambda one: (UNDER_WAY.index(one.state), one.iterations or 0))
    if ok >= planned.point.measure.launches:
        return PointState(planned, "ok", ok, None, None)
    last = max((r for r in records if r.status != "ok"), key=lambda r: r.finished, default=None)
    if last is None:
        return PointState(planned, "missing", ok, next(filter(None, others), None), None)
    return PointState(planned, last.status, ok, last.reason, None)


def _under_way(planned: Planned, ok: int, launch: JobFolder, who: str, jobs: Jobs) -> PointState:
    finished = len(launch.progress(0))
    note = Submission.of(launch)
    state = "running" if finished else "starting"
    reason = None
    if note is not None:
        slurm = jobs.state(launch)
        if slurm is None or slurm.waits:
            state = "queued"
        waits = f" ({slurm.reason}{', held' if slurm.held else ''})" if slurm and slurm.waits and slurm.reason else ""
        reason = f"{who}{waits}"
    return PointState(planned, state, ok, reason, finished)
