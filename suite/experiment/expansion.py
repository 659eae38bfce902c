"""Expansion: an experiment, a scale and overrides become the list of planned points."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.experiment.catalogue import load_cluster
from suite.experiment.cluster import Cluster
from suite.experiment.errors import BadInput, Problem, shown
from suite.experiment.expression import EvaluationError, Expression
from suite.experiment.fields import FIELDS, REQUIRED, short
from suite.experiment.overrides import read_overrides
from suite.experiment.point import Point
from suite.experiment.schedule_digest import with_digest
from suite.experiment.settings import Setting, Settings, lay, read
from suite.experiment.spec import Derivation, Experiment, Requirement, Scale
from suite.experiment.sweep import Choice
from suite.experiment.validity import violations
from suite.records.schema import Source

MAX_POINTS = 100_000


@dataclass(frozen=True)
class Planned:
    """One point of a plan. Valid where `reasons` is empty; `point` is None where a field has no value."""

    point: Point | None
    reasons: list[str]
    point_id: str
    label: str  # what distinguishes it within its sweep
    configuration: dict[str, Any]  # as a record carries it: resolved, or as far as it could be

    @property
    def valid(self) -> bool:
        """Whether the point can run."""
        return not self.reasons


@dataclass(frozen=True)
class Expansion:
    """The points of one scale in the order of the sweep; `dropped` counts repetitions that were left out."""

    points: list[Planned]
    dropped: int = 0

    @property
    def valid(self) -> list[Planned]:
        """The points that can run."""
        return [planned for planned in self.points if planned.valid]


def expand(experiment: Experiment, scale: str, overrides: Iterable[str] = (), source: Source = "measured") -> Expansion:
    """Every point of the experiment at one scale. BadInput for what is wrong with the file or an override.

    `source` says how the points are to be run, which decides how many ranks one may have.

    A point that breaks a rule is in the list with its reasons; only one that equals an earlier point is left
    out, and counted.
    """
    return _Expander(experiment, experiment.scale(scale), list(overrides), source).expansion()


class _Expander:
    """One expansion: what is the same for all of its points."""

    def __init__(self, experiment: Experiment, scale: Scale, texts: list[str], source: Source) -> None:
        self.experiment, self.source = experiment, source
        self.scale = scale
        self.clusters: dict[str, Cluster] = {}
        self.problems: list[Problem] = []
        overrides = read_overrides(texts, scale.keys)
        self.sweep = tuple(block.overridden(overrides) for block in scale.sweep)
        given = {key for factor in overrides for key in factor.written}
        self.derive = [entry for entry in scale.derive if entry.key not in given]

    def expansion(self) -> Expansion:
        size = sum(block.size for block in self.sweep)
        if size > MAX_POINTS:
            message = f"the sweep has {size} points, more than the {MAX_POINTS} that one plan may have"
            raise BadInput([Problem(message, self.scale.place, "sweep")])
        found: dict[str, Planned] = {}
        count = 0
        for block in self.sweep:
            shows = [len(factor.choices) > 1 for factor in block.factors]
            for combination in block.combinations():
                count += 1
                planned = self.plan(combination, shows)
                if planned is not None:
                    found.setdefault(planned.point_id, planned)
        if self.problems:
            raise BadInput(self.problems)
        return Expansion(list(found.values()), count - len(found))

    def plan(self, combination: Sequence[Choice], shows: list[bool]) -> Planned | None:
        """One point; None, and a problem, where the file itself is at fault."""
        settings: Settings = dict(self.scale.settings)
        lay(settings, (change for choice in combination for change in choice))
        derived = {entry.key for entry in self.derive}
        missing = [key for key in REQUIRED if key not in settings and key not in derived]
        if missing:
            self.problems += [self.missing(key) for key in missing]
            return None
        label = _label(combination, shows)
        failed = next((reason for entry in self.derive if (reason := _derive(settings, entry))), None)
        cluster = self.cluster(settings)
        if cluster is None:
            return None
        if failed is not None:
            return Planned(None, [failed], _hash(settings), label or "unresolved", _nested(settings))
        point = with_digest(Point.model_validate(_nested(settings)))
        reasons = violations(point, cluster, self.source)
        reasons += [reason for rule in self.scale.require if (reason := _broken(settings, rule)) is not None]
        return Planned(point, reasons, point.id, label or _summary(point), point.model_dump(mode="json"))

    def missing(self, key: str) -> Problem:
        """What to say about a field that every point needs and nothing gives."""
        hint = "; give it, or name a model" if key.startswith("model.") else ", and has no default; give it"
        return Problem(f"is not set at scale {self.scale.name}{hint}", self.scale.place, key)

    def cluster(self, settings: Settings) -> Cluster | None:
        """The point's cluster profile; None, and a problem where its name was written, if there is none."""
        name = read(settings, "cluster")
        if name not in self.clusters:
            written = settings.get("cluster")
            try:
                self.clusters[name] = load_cluster(name, written.place if written else self.scale.place)
            except BadInput as bad:
                self.problems += bad.problems
                return None
        return self.clusters[name]


def _derive(settings: Settings, entry: Derivation) -> str | None:
    """Set a derived value; or say why it has none, and leave the field as it is."""
    text = f"{entry.key} is derived as '{entry.expression.text}'"
    try:
        value = entry.expression.value(lambda key: read(settings, key))
    except EvaluationError as error:
        return f"{text}, which has no value: {error}{_with_values(settings, entry.expression)}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    rule = FIELDS.get(entry.key)
    complaint = rule.complaint(value) if rule else None
    if complaint is not None:
        return f"{text}: {complaint}{_with_values(settings, entry.expression)}"
    settings[entry.key] = Setting(value, entry.place)
    return None


def _broken(settings: Settings, rule: Requirement) -> str | None:
    """Why the point breaks a rule of its file, with the values the rule is about; None if it does not."""
    values = _with_values(settings, rule.that)
    because = f": {rule.because}" if rule.because else ""
    try:
        holds = rule.that.value(lambda key: read(settings, key))
    except EvaluationError as error:
        return f"the rule '{rule.that.text}' has no value: {error}{values}"
    if holds is True:
        return None
    if holds is False:
        return f"the rule '{rule.that.text}' does not hold{values}{because}"
    return f"the rule '{rule.that.text}' gives {shown(holds)}, which is neither true nor false{values}"


def _with_values(settings: Settings, expression: Expression) -> str:
    """The values of the names in an expression, in parentheses."""
    parts = []
    for name, key in expression.names.items():
        try:
            parts.append(f"{name} is {shown(read(settings, key))}")
        except EvaluationError:
            parts.append(f"{name} is not set")
    return f" ({', '.join(parts)})" if parts else ""


def _nested(settings: Settings) -> dict[str, Any]:
    """Settings as a point's nested mapping; variables are no part of it."""
    nested: dict[str, Any] = {}
    for key, setting in settings.items():
        if key not in FIELDS:
            continue
        section, dot, leaf = key.partition(".")
        if dot:
            nested.setdefault(section, {})[leaf] = setting.value
        else:
            nested[section] = setting.value
    return nested


def _hash(settings: Settings) -> str:
    """An id for a point that could not be resolved and so has none of its own."""
    values = {key: setting.value for key, setting in settings.items()}
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _label(combination: Sequence[Choice], shows: list[bool]) -> str:
    """What the point's choices set, as far as there was a choice."""
    written: dict[str, Any] = {}
    for choice, show in zip(combination, shows, strict=True):
        if show:
            for change in choice:
                written.update(change.written)
    return " ".join(
        f"{short(key)}={value if isinstance(value, str) else shown(value)}" for key, value in written.items()
    )


def _summary(point: Point) -> str:
    """A label for a point that is the only one."""
    return f"{point.schedule_label} {point.layout} B={point.training.global_batch}"
