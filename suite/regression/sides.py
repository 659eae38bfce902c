"""What the words of a comparison stand for: a results folder, a baseline, a git revision, or an override."""

import json
import subprocess
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from suite.experiment.catalogue import default_scale, list_experiments, load_experiment
from suite.experiment.errors import BadInput, Problem
from suite.experiment.expansion import expand
from suite.experiment.overrides import read_overrides
from suite.experiment.spec import Experiment
from suite.records import store
from suite.records.store import Store, StoredRecord, read_stores
from suite.regression.baseline import BASELINES, baseline_folders, baseline_names
from suite.regression.comparison import Side
from suite.regression.launches import PointKey, PointLaunches, by_revision


class NothingToCompareError(Exception):
    """A side has no records; a sentence says what was looked for."""


@dataclass(frozen=True)
class Scope:
    """Which records are looked at."""

    results: Sequence[Path]  # folders that revisions and overrides are looked up in
    experiment: str | None = None
    scale: str | None = None
    overrides: Sequence[str] = ()  # of the experiment, on both sides


def sides_of(baseline: str, candidate: str, scope: Scope) -> tuple[Side, Side]:
    """Both sides. Raises BadInput, and NothingToCompareError where a side has no records."""
    if scope.overrides and scope.experiment is None:
        _refuse(f"'{scope.overrides[0]}': overrides choose points of an experiment; give it with --experiment")
    if ("=" in baseline) != ("=" in candidate):
        _refuse(f"'{baseline}' against '{candidate}': an override is compared with an override, such as schedule=1f1b")
    if baseline == candidate or _same_folder(baseline, candidate):
        _refuse(f"'{baseline}' against '{candidate}': both sides are the same; measure twice, or compare two of them")
    if "=" in baseline:
        return _overridden(baseline, candidate, scope)
    return _side(baseline, scope), _side(candidate, scope)


def _refuse(sentence: str) -> NoReturn:
    raise BadInput([Problem(sentence)])


def _same_folder(one: str, other: str) -> bool:
    first, second = Path(one), Path(other)
    return first.is_dir() and second.is_dir() and first.samefile(second)


def _side(word: str, scope: Scope) -> Side:
    """A folder's newest launches, a baseline's of every machine, or those of a revision."""
    path = Path(word)
    if path.is_dir():
        return newest(word, [path], scope)
    if path.exists():
        _refuse(f"'{word}' is a file; a results folder, such as results/runs, would work")
    chosen = _chosen(scope)
    if word in baseline_names():
        return _machines(word, scope, chosen)
    revision = _commit(word) or word
    found, problems = _records(scope.results, scope)
    points: dict[Hashable, list[PointLaunches]] = {}
    for key, revisions in found.items():
        own = [one for one in revisions if one.revision == revision]
        if own and (chosen is None or key.point_id in chosen):
            points[key] = own
    if not points:
        known = sorted({one.revision for revisions in found.values() for one in revisions})
        raise NothingToCompareError(
            f"'{word}' is no folder and no baseline, and no record is of revision {revision}; "
            f"baselines in {BASELINES}: {', '.join(baseline_names()) or 'none'}; "
            f"revisions in {', '.join(map(str, scope.results))}: {', '.join(known[-6:]) or 'none'}"
        )
    return Side(word if word == revision else f"{word} ({revision})", points, problems)


def newest(word: str, folders: Sequence[Path], scope: Scope) -> Side:
    """Of every point in the folders the newest revision's launches. Raises NothingToCompareError without any."""
    chosen = _chosen(scope)
    found, problems = _records(folders, scope)
    points: dict[Hashable, list[PointLaunches]] = {
        key: revisions[-1:] for key, revisions in found.items() if chosen is None or key.point_id in chosen
    }
    if not points:
        skipped = f"; {len(problems)} files were skipped, the first: {problems[0].reason}" if problems else ""
        raise NothingToCompareError(
            f"'{word}': nothing was measured; it holds no <experiment>/<scale>/<source>/<point>/ with a record of "
            f"{scope.experiment or 'any experiment'}{skipped}"
        )
    return Side(word, points, problems)


def _machines(name: str, scope: Scope, chosen: frozenset[str] | None) -> Side:
    """A baseline: of every point one entry for every kind of machine that it was saved on."""
    points: dict[Hashable, list[PointLaunches]] = {}
    problems: list[store.Problem] = []
    for folder in baseline_folders(name):
        found, skipped = _records([folder], scope)
        problems += skipped
        for key, revisions in found.items():
            if chosen is None or key.point_id in chosen:
                points.setdefault(key, []).append(revisions[-1])
    if not points:
        what = f"; {len(problems)} files were skipped, the first: {problems[0].reason}" if problems else ""
        raise NothingToCompareError(
            f"baseline '{name}' has no record of {scope.experiment or 'any experiment'}{what}; "
            f"suite baseline {name} {scope.experiment or 'EXPERIMENT'} saves what is in the results"
        )
    return Side(f"baseline {name}", points, problems)


def _records(folders: Sequence[Path], scope: Scope) -> tuple[dict[PointKey, list[PointLaunches]], list[store.Problem]]:
    """The records in scope by point and revision."""
    records, problems = records_of(folders, scope)
    points, edited = by_revision(records)
    return points, sorted([*problems, *edited])


def records_of(folders: Sequence[Path], scope: Scope) -> tuple[list[StoredRecord], list[store.Problem]]:
    """The records in scope. Raises BadInput for an experiment that has neither a file nor records."""
    recorded = sorted({name for folder in folders for name in Store(folder).experiments()})
    asked = scope.experiment
    if asked is None:
        names = recorded
    elif asked in recorded and asked not in list_experiments():  # its file is gone, or lies elsewhere
        names = [asked]
    else:
        names = [load_experiment(asked).name]
    records: list[StoredRecord] = []
    problems: list[store.Problem] = []
    for name in names:
        try:
            found, skipped = read_stores(folders, name, scope.scale)
        except ValueError:  # a folder that no experiment can have made
            continue
        records += found
        problems += skipped
    return records, problems


def _chosen(scope: Scope, *more: str) -> frozenset[str] | None:
    """Ids of the points that the overrides leave; None where nothing narrows them down."""
    given = [*scope.overrides, *more]
    if scope.experiment is None or not given:
        return None
    experiment = load_experiment(scope.experiment)
    points = expand(experiment, scope.scale or default_scale(experiment), given).points
    return frozenset(planned.point_id for planned in points)


def _commit(word: str) -> str | None:
    """The short commit, as records are named by it, that a word stands for in the repository here."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--short=10", f"{word}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _overridden(baseline: str, candidate: str, scope: Scope) -> tuple[Side, Side]:
    """Two overrides of one experiment: points match where they agree in all that neither override covers."""
    if scope.experiment is None:
        _refuse(f"'{baseline}' against '{candidate}': overrides are of an experiment; give it with --experiment")
    experiment = load_experiment(scope.experiment)
    scale = scope.scale or default_scale(experiment)
    covered = _covered(experiment, scale, [baseline, candidate])
    found, problems = _records(scope.results, Scope(scope.results, scope.experiment, scale))
    sides = []
    for word in (baseline, candidate):
        chosen = _chosen(Scope(scope.results, scope.experiment, scale, scope.overrides), word)
        assert chosen is not None
        points: dict[Hashable, list[PointLaunches]] = {}
        for key, revisions in found.items():
            if key.point_id not in chosen:
                continue
            rest = json.dumps([key.source, _without(revisions[-1].point.model_dump(mode="json"), covered)])
            if rest in points:
                _refuse(f"'{word}': several points differ only in what it sets; further overrides would choose one")
            points[rest] = revisions[-1:]
        if not points:
            raise NothingToCompareError(f"'{word}': no record of {experiment.name} at scale {scale} is of such a point")
        sides.append(Side(word, points, problems))
    if {one[0].key for one in sides[0].points.values()} & {one[0].key for one in sides[1].points.values()}:
        _refuse(f"'{baseline}' against '{candidate}': both are the same points")
    return sides[0], sides[1]


def _covered(experiment: Experiment, scale: str, words: Sequence[str]) -> frozenset[str]:
    """Dotted fields that the overrides set or reset, and those that the experiment derives."""
    found = experiment.scale(scale)
    factors = [factor for word in words for factor in read_overrides([word], found.keys)]
    derived = {entry.key for entry in found.derive}
    named = {"model.name"}  # a label
    return frozenset(key for factor in factors for key in factor.covers | factor.written) | derived | named


def _without(fields: dict[str, Any], keys: frozenset[str], above: str = "") -> dict[str, Any]:
    return {
        key: _without(value, keys, f"{above}{key}.") if isinstance(value, dict) else value
        for key, value in sorted(fields.items())
        if f"{above}{key}" not in keys
    }
