"""What a sweep has to do: which launches are missing, and which points cannot run."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.experiment.expansion import Planned
from suite.experiment.point import Point
from suite.launch.inputs import Inputs
from suite.launch.job import now
from suite.measure.provenance import host_environment, revision
from suite.records.schema import Record, Source
from suite.records.store import Store, StoredRecord


@dataclass(frozen=True)
class Todo:
    """What a sweep has to do: launches per point, and what is there already."""

    missing: list[tuple[Point, int]]  # a point and how many launches it lacks
    present: list[Point]
    invalid: list[Planned]
    elsewhere: list[tuple[Point, str]]  # a point that is missing though it has records, and what those were measured on

    @property
    def launches(self) -> int:
        """Launches to run."""
        return sum(count for _, count in self.missing)


def todo(points: Sequence[Planned], records: Sequence[StoredRecord], fresh: bool) -> Todo:
    """A point is present when its launches are there with status ok, whatever the revision, on the files that it names.

    `fresh` measures every point again.
    """
    found: dict[str, list[StoredRecord]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and not fresh:
            found[record.point_id].append(record)
    inputs = Inputs()
    work = Todo([], [], [], [])
    for planned in points:
        if planned.point is None or planned.reasons:
            work.invalid.append(planned)
            continue
        others = [inputs.other(record, planned.point) for record in found[planned.point.id]]
        lacking = planned.point.measure.launches - others.count(None)
        if lacking <= 0:
            work.present.append(planned.point)
            continue
        work.missing.append((planned.point, lacking))
        work.elsewhere.extend([(planned.point, why) for why in others if why][:1])
    return work


def record_invalid(planned: Planned, experiment: str, scale: str, source: Source, folder: Path) -> None:
    """Keep why a point cannot run, once for each reason."""
    reason = "; ".join(planned.reasons)
    store = Store(folder)
    known, _ = store.read(experiment, scale, source)
    if any(r.point_id == planned.point_id and r.status == "invalid" and r.reason == reason for r in known):
        return
    record = Record.model_validate(
        {
            "experiment": experiment,
            "scale": scale,
            "point_id": planned.point_id,
            "source": source,
            "point": planned.configuration,
            "status": "invalid",
            "reason": reason,
            "environment": host_environment(),
            "started": now(),
            "finished": now(),
        }
    )
    store.write(record, revision())
