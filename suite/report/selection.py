"""Which records a report is about: an experiment by name, at a scale, and the points that overrides leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.experiment.catalogue import default_scale, list_experiments, load_experiment
from suite.experiment.errors import BadInput, Place, Problem, did_you_mean
from suite.experiment.expansion import expand
from suite.experiment.spec import Experiment
from suite.records import store
from suite.records.store import Store, StoredRecord, read_stores


@dataclass(frozen=True)
class Selection:
    """An experiment's records as asked for, and the files that are none."""

    name: str  # the experiment's, and its folder's
    title: str
    records: list[StoredRecord]
    problems: list[store.Problem]
    left_out: int = 0  # records of points that the overrides do not leave
    schedules: tuple[str, ...] = ()  # labels in the order of the experiment's sweep
    experiment: Experiment | None = None  # None where there are only records
    points: frozenset[str] | None = None  # ids of the points that the overrides leave; None without overrides


def select(name: str, overrides: Sequence[str], scale: str | None, folders: Sequence[Path]) -> Selection:
    """The records of an experiment that has a file, or only records.

    Overrides leave the points that `suite plan` lists with them. Raises BadInput for a name, a scale or an override
    that does not exist.
    """
    recorded = {known for folder in folders for known in Store(folder).experiments()}
    if name in recorded and name not in list_experiments():
        return _without_a_file(name, overrides, scale, folders)
    experiment = load_experiment(name)
    if overrides and scale is None:
        scale = default_scale(experiment)
    records, problems = read_stores(folders, experiment.name, scale)
    if scale is not None and (overrides or not records):
        experiment.scale(scale)
    title, kept, chosen = experiment.title or experiment.name, records, None
    if overrides and scale is not None:
        title += f" ({' '.join(overrides)})"
        chosen = frozenset(planned.point_id for planned in expand(experiment, scale, overrides).points)
        kept = [record for record in records if record.point_id in chosen]
    left_out = len(records) - len(kept)
    schedules = _schedules(experiment, records)
    return Selection(experiment.name, title, kept, problems, left_out, schedules, experiment, chosen)


def _without_a_file(name: str, overrides: Sequence[str], scale: str | None, folders: Sequence[Path]) -> Selection:
    records, problems = read_stores(folders, name)
    scales = sorted({record.scale for record in records})
    if overrides:
        message = "has records and no file, so that overrides choose nothing; leave them out"
        raise BadInput([Problem(message, Place(name))])
    if scale is not None and scale not in scales:
        message = f"there is no scale '{scale}'; {did_you_mean(scale, scales)}"
        raise BadInput([Problem(message, Place(name), "--scale")])
    return Selection(name, name, [record for record in records if scale in (None, record.scale)], problems)


def _schedules(experiment: Experiment, records: Sequence[StoredRecord]) -> tuple[str, ...]:
    """The schedules of the whole sweep, at the scales that were run: what they look like hangs on nothing else."""
    scales = [scale for scale in experiment.scales if any(record.scale == scale for record in records)]
    try:
        points = [planned.point for scale in scales for planned in expand(experiment, scale).points]
    except BadInput:  # records can be reported though their file has changed for the worse
        return ()
    return tuple(dict.fromkeys(point.schedule_label for point in points if point is not None))
