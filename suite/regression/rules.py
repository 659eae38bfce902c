"""What counts as a change, and what is let pass for a while: thresholds and waivers, in a file of their own.

tolerance: 2%
experiments:
  throughput: {tolerance: 3%, points: {ff890ecb: 5%}}
waivers:
  - {experiment: throughput, point: ff890ecb, until: 2027-01-31, reason: "new driver, issue 12"}
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from suite.experiment.errors import BadInput, Place, Problem, did_you_mean, shown
from suite.experiment.source import Node, read_yaml
from suite.regression.launches import PointKey
from suite.regression.verdict import DEFAULT_TOLERANCE

RULES_FILE = Path("regression.yaml")


@dataclass(frozen=True)
class Threshold:
    """The change that matters, relative, and which rule says so."""

    tolerance: float
    origin: str


@dataclass(frozen=True)
class Waiver:
    """A regression of a point that is let pass until the end of a day, and why."""

    experiment: str
    point_id: str
    until: date
    reason: str


@dataclass(frozen=True)
class Rules:
    """Thresholds, the most specific of which applies, and waivers."""

    default: Threshold = Threshold(DEFAULT_TOLERANCE, "default")
    experiments: dict[str, float] | None = None
    points: dict[tuple[str, str], float] | None = None
    waivers: tuple[Waiver, ...] = ()

    def threshold(self, key: PointKey) -> Threshold:
        """The threshold of a point: its own, its experiment's, or the default."""
        own = (self.points or {}).get((key.experiment, key.point_id))
        if own is not None:
            return Threshold(own, "point")
        shared = (self.experiments or {}).get(key.experiment)
        return self.default if shared is None else Threshold(shared, "experiment")

    def waiver(self, key: PointKey) -> Waiver | None:
        """The waiver of a point that lasts longest."""
        found = [w for w in self.waivers if (w.experiment, w.point_id) == (key.experiment, key.point_id)]
        return max(found, key=lambda waiver: waiver.until, default=None)


def read_tolerance(text: str) -> float:
    """`2%` or `0.02`, above 0 and below 100 %. Raises ValueError with what would work."""
    given = text.strip()
    try:
        value = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        raise ValueError(f"{text!r} is no percentage; 2% would work") from None
    if not 0 < value < 1:
        hint = f"{given}%" if not given.endswith("%") and 1 <= value < 100 else "2%"
        raise ValueError(f"{text!r} is not above 0 % and below 100 %; {hint} would work")
    return value


def read_rules(path: Path | None, tolerance: float | None) -> Rules:
    """The rules in the file; without one named, in `regression.yaml` here if there is one. BadInput for what is wrong.

    `tolerance` takes the place of the file's default.
    """
    given = path or (RULES_FILE if RULES_FILE.is_file() else None)
    rules = _Reader().rules(read_yaml(given)) if given else Rules()
    if tolerance is None:
        return rules
    return Rules(Threshold(tolerance, "--tolerance"), rules.experiments, rules.points, rules.waivers)


class _Reader:
    """Reads the file and collects all that is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def rules(self, root: Node) -> Rules:
        default, experiments, points = Threshold(DEFAULT_TOLERANCE, "default"), {}, {}
        waivers: list[Waiver] = []
        for key, node in self.entries(root, "", ("tolerance", "experiments", "waivers")).items():
            if key == "tolerance":
                default = Threshold(self.tolerance(node, key), "default")
            elif key == "experiments":
                for name, own in self.entries(node, key).items():
                    for inner, item in self.entries(own, f"{key}.{name}", ("tolerance", "points")).items():
                        if inner == "tolerance":
                            experiments[name] = self.tolerance(item, f"{key}.{name}.tolerance")
                        else:
                            for point, value in self.entries(item, f"{key}.{name}.points").items():
                                points[name, point] = self.tolerance(value, f"{key}.{name}.points.{point}")
            else:
                waivers = self.waivers(node)
        if self.problems:
            raise BadInput(self.problems)
        return Rules(default, experiments, points, tuple(waivers))

    def entries(self, node: Node, where: str, known: tuple[str, ...] | None = None) -> dict[str, Node]:
        """A mapping's entries, without the unknown ones."""
        if not isinstance(node.value, dict):
            self.refuse(f"got {shown(node.plain())}; it must be a mapping", node.place, where)
            return {}
        wrong = [] if known is None else [key for key in node.value if key not in known]
        for key in wrong:
            place = node.value[key].key_or_value_place
            self.refuse(f"unknown key; {did_you_mean(key, known or ())}", place, f"{where}.{key}".lstrip("."))
        return {key: item for key, item in node.value.items() if key not in wrong}

    def tolerance(self, node: Node, where: str) -> float:
        try:
            return read_tolerance(str(node.value))
        except ValueError as error:
            self.refuse(str(error), node.place, where)
            return DEFAULT_TOLERANCE

    def waivers(self, node: Node) -> list[Waiver]:
        if not isinstance(node.value, list):
            self.refuse(f"got {shown(node.plain())}; it must be a list of waivers", node.place, "waivers")
            return []
        return [found for item in node.value if (found := self.waiver(item)) is not None]

    def waiver(self, node: Node) -> Waiver | None:
        keys = ("experiment", "point", "until", "reason")
        given = self.entries(node, "waivers", keys)
        texts: dict[str, Any] = {key: item.value for key, item in given.items()}
        for key in keys:
            if not isinstance(texts.get(key), str) or not texts[key].strip():
                example = {"until": "2027-01-31", "reason": '"new driver, issue 12"'}.get(key, "a name")
                message = f"a waiver needs it, as text; {key}: {example} would work"
                self.refuse(message, node.key_or_value_place, f"waivers.{key}")
                return None
        try:
            until = date.fromisoformat(texts["until"])
        except ValueError:
            message = f"got {shown(texts['until'])}; it must be a day, such as 2027-01-31"
            self.refuse(message, given["until"].place, "waivers.until")
            return None
        return Waiver(texts["experiment"], texts["point"], until, texts["reason"])

    def refuse(self, message: str, place: Place, key: str) -> None:
        self.problems.append(Problem(message, place, key))
