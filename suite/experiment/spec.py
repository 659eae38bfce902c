"""An experiment as declared in its file: per scale the base settings, the sweep, and the expressions.

The base fields stand at the top level; a scale's own lie over them. A scale's sweep replaces the top level's,
its `derive` and `variables` go over the top level's key by key, and its `require` rules are added. What is
more specific wins: a field that a scale sets or sweeps is no longer derived by the top level.
"""

import keyword
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.experiment.errors import BadInput, Place, Problem, did_you_mean, shown
from suite.experiment.expression import FUNCTIONS, Expression, ExpressionError, parse
from suite.experiment.fields import COMPUTED, FIELDS, LONE, SECTIONS, SHORT
from suite.experiment.settings import Keys, Setting, Settings, base_change, keys_read, lay
from suite.experiment.source import Node, read_yaml
from suite.experiment.sweep import Sweep, read_sweep

DEFAULT_SCALE = "laptop"

_BASE = (*SECTIONS, *LONE)
_SCALE_KEYS = (*_BASE, "variables", "sweep", "derive", "require")
_FILE_KEYS = ("name", "title", "paper", "scales", *_SCALE_KEYS)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_RULE = "it names a folder, so it must be unaccented letters, digits, '.', '_' and '-', a letter or digit first"


@dataclass(frozen=True)
class Derivation:
    """A field or variable computed from others."""

    key: str
    expression: Expression
    place: Place


@dataclass(frozen=True)
class Requirement:
    """A rule that every point must meet, and why."""

    that: Expression
    because: str
    place: Place


@dataclass(frozen=True)
class Scale:
    """One scale of an experiment, with the top level already under it. `derive` is in order of evaluation."""

    name: str
    settings: Settings  # base fields and variables
    variables: tuple[str, ...]
    sweep: Sweep
    derive: tuple[Derivation, ...]
    require: tuple[Requirement, ...]
    place: Place

    @property
    def keys(self) -> Keys:
        """What words stand for here."""
        return Keys(self.variables)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment file."""

    name: str
    title: str
    paper: dict[str, Any]
    path: Path
    scales: dict[str, Scale]

    def scale(self, name: str) -> Scale:
        """The scale of that name; BadInput lists the scales where there is none."""
        if name not in self.scales:
            have = ", ".join(self.scales)
            message = f"there is no scale '{name}'; this experiment has: {have}"
            raise BadInput([Problem(message, Place(str(self.path)), "scales")])
        return self.scales[name]


def read_experiment(path: Path) -> Experiment:
    """The experiment in a file. BadInput carries everything that is wrong, in the order of the file."""
    root = read_yaml(path)
    if not isinstance(root.value, dict):
        what = "is empty" if root.value is None else f"got {shown(root.plain())}"
        raise BadInput([Problem(f"{what}; an experiment is a mapping with model, training, sweep, ...", root.place)])
    problems: list[Problem] = []
    _refuse_unknown(root, _FILE_KEYS, "", problems)
    name = _text(root, "name", path.stem, problems)
    if not _FOLDER_NAME.fullmatch(name):
        got = f"got {shown(name)}" if "name" in root.value else f"is left out, and the file is called {shown(name)}"
        message = f"{got}; {_NAME_RULE}; {_folder_name(name)} would work"
        problems.append(Problem(message, _child(root, "name").place, "name"))
    title = _text(root, "title", name, problems)
    paper = root.value.get("paper")
    if paper is not None and not isinstance(paper.value, dict):
        problems.append(Problem(f"got {shown(paper.plain())}; it must be a mapping", paper.place, "paper"))
    scales = {
        scale_name: _read_scale(scale_name, root, node, problems) for scale_name, node in _scale_nodes(root, problems)
    }
    if problems:
        order = {
            problem: (problem.place.line, problem.place.column) if problem.place else (0, 0) for problem in problems
        }
        raise BadInput(sorted(order, key=lambda problem: order[problem]))
    return Experiment(name, title, paper.plain() if paper else {}, path, scales)


def _child(node: Node, key: str) -> Node:
    found = node.value.get(key)
    return found if isinstance(found, Node) else node


def _folder_name(name: str) -> str:
    """The name that may stand for a folder and is nearest to `name`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "experiment"


def _refuse_unknown(node: Node, known: tuple[str, ...], where: str, problems: list[Problem]) -> None:
    for key, item in node.value.items():
        if key in known:
            continue
        message = f"unknown key; {did_you_mean(key, known)}"
        if key in SHORT:
            section = SHORT[key].partition(".")[0]
            message = f"is a field of {section}; write {section}: {{{key}: ...}}"
        problems.append(Problem(message, item.key_or_value_place, where + key))


def _text(root: Node, key: str, default: str, problems: list[Problem]) -> str:
    node = root.value.get(key)
    if node is None:
        return default
    if not isinstance(node.value, str):
        problems.append(Problem(f"got {shown(node.plain())}; it must be text", node.place, key))
        return default
    return node.value


def _scale_nodes(root: Node, problems: list[Problem]) -> list[tuple[str, Node]]:
    """The scales by name; a file without any has the default scale with nothing of its own."""
    node = root.value.get("scales")
    if node is None:
        return [(DEFAULT_SCALE, Node({}, root.place))]
    if not isinstance(node.value, dict) or not node.value:
        message = f"got {shown(node.plain())}; it must be a mapping from a scale's name to its fields"
        problems.append(Problem(message, node.place, "scales"))
        return []
    found = []
    for name, item in node.value.items():
        if not _FOLDER_NAME.fullmatch(name):
            message = f"{_NAME_RULE}; {_folder_name(name)} would work"
            problems.append(Problem(message, item.key_or_value_place, f"scales.{name}"))
        if item.value is None:
            item = Node({}, item.place, item.key_place)
        if not isinstance(item.value, dict):
            message = f"got {shown(item.plain())}; it must be a mapping of fields"
            problems.append(Problem(message, item.place, f"scales.{name}"))
            continue
        _refuse_unknown(item, _SCALE_KEYS, f"scales.{name}.", problems)
        found.append((name, item))
    return found


def _read_scale(name: str, top: Node, own: Node, problems: list[Problem]) -> Scale:
    variables = _variables(top, problems) | _variables(own, problems)
    keys = Keys(variables)
    settings: Settings = dict(variables)
    top_base, own_base = base_change(top, problems), base_change(own, problems)
    lay(settings, top_base)
    lay(settings, own_base)
    own_sweep = "sweep" in own.value
    sweep = read_sweep((own if own_sweep else top).value.get("sweep"), keys, problems)
    swept = {key for block in sweep for factor in block.factors for key in factor.written}

    top_derive, own_derive = _derivations(top, keys, problems), _derivations(own, keys, problems)
    top_given = {key for change in top_base for key in change.written}
    own_given = {key for change in own_base for key in change.written}
    _refuse_both(top_derive, top_given, "given a value", problems)
    _refuse_both(own_derive, own_given, "given a value", problems)
    _refuse_both(own_derive, swept, "swept", problems)
    if own_sweep:
        own_given |= swept
    else:
        _refuse_both(top_derive, swept, "swept", problems)
    derive = {key: entry for key, entry in top_derive.items() if key not in own_given} | own_derive
    return Scale(
        name=name,
        settings=settings,
        variables=tuple(variables),
        sweep=sweep,
        derive=_in_order(derive, problems),
        require=tuple(_requirements(top, keys, problems) + _requirements(own, keys, problems)),
        place=own.key_or_value_place,
    )


def _variables(node: Node, problems: list[Problem]) -> Settings:
    given = node.value.get("variables")
    if given is None:
        return {}
    if not isinstance(given.value, dict):
        message = f"got {shown(given.plain())}; it must be a mapping from a name to its default value"
        problems.append(Problem(message, given.place, "variables"))
        return {}
    found: Settings = {}
    for name, item in given.value.items():
        where = f"variables.{name}"
        if not name.isidentifier() or keyword.iskeyword(name):
            problems.append(Problem("a variable's name must be letters, digits and '_'", item.key_place, where))
        elif name in FIELDS or name in SHORT or name in SECTIONS or name in COMPUTED or name in FUNCTIONS:
            problems.append(Problem("the name already means something else; take another", item.key_place, where))
        elif not isinstance(item.value, bool | int | float | str):
            message = f"got {shown(item.plain())}; a variable is a number, a text, true or false"
            problems.append(Problem(message, item.place, where))
        else:
            found[name] = Setting(item.value, item.place)
    return found


def _expression(node: Node, where: str, keys: Keys, problems: list[Problem]) -> Expression | None:
    if isinstance(node.value, bool | int | float):
        node = Node(str(node.value), node.place)
    if not isinstance(node.value, str) or not node.value.strip():
        message = f"got {shown(node.plain())}; it must be an expression, such as global_batch // data"
        problems.append(Problem(message, node.place, where))
        return None
    try:
        return parse(node.value, keys.readable_key, lambda: keys.readable)
    except ExpressionError as error:
        problems.append(Problem(str(error), node.place, where))
        return None


def _derivations(node: Node, keys: Keys, problems: list[Problem]) -> dict[str, Derivation]:
    given = node.value.get("derive")
    if given is None:
        return {}
    if not isinstance(given.value, dict):
        message = f"got {shown(given.plain())}; it must be a mapping from a field to an expression"
        problems.append(Problem(message, given.place, "derive"))
        return {}
    found: dict[str, Derivation] = {}
    for word, item in given.value.items():
        where = f"derive.{word}"
        key = keys.field(word)
        if key is None or key in ("model.name", "schedule.name"):
            if keys.knows(word):
                message = "a whole section or its name cannot be derived; sweep it, or derive one of its fields"
            else:
                message = f"names no field or variable; {did_you_mean(word, [*keys.variables, *SHORT, *FIELDS])}"
            problems.append(Problem(message, item.key_place, where))
            continue
        if key in found:
            problems.append(Problem(f"{key} is derived twice; keep one of the two", item.key_place, where))
        expression = _expression(item, where, keys, problems)
        if expression is not None:
            found[key] = Derivation(key, expression, item.place)
    return found


def _refuse_both(derived: dict[str, Derivation], given: set[str], how: str, problems: list[Problem]) -> None:
    for key in sorted(derived.keys() & given):
        message = f"is both derived and {how}; keep one of the two"
        problems.append(Problem(message, derived[key].place, f"derive.{key}"))


def _in_order(derive: dict[str, Derivation], problems: list[Problem]) -> tuple[Derivation, ...]:
    """The derivations, each after those it reads."""
    done: list[Derivation] = []
    state: dict[str, str] = {}

    def visit(key: str, path: list[str]) -> None:
        if state.get(key) == "done":
            return
        if state.get(key) == "open":
            circle = " -> ".join([*path[path.index(key) :], key])
            problems.append(Problem(f"is derived from itself: {circle}", derive[key].place, f"derive.{key}"))
            return
        state[key] = "open"
        for name in derive[key].expression.names.values():
            for read in keys_read(name):
                if read in derive:
                    visit(read, [*path, key])
        state[key] = "done"
        done.append(derive[key])

    for key in derive:
        visit(key, [])
    return tuple(done)


def _requirements(node: Node, keys: Keys, problems: list[Problem]) -> list[Requirement]:
    given = node.value.get("require")
    if given is None:
        return []
    if not isinstance(given.value, list):
        message = f"got {shown(given.plain())}; it must be a list of expressions or {{that: ..., because: ...}}"
        problems.append(Problem(message, given.place, "require"))
        return []
    found = []
    for index, item in enumerate(given.value, start=1):
        where = f"require, rule {index}"
        that, because = item, ""
        if isinstance(item.value, dict):
            _refuse_unknown(item, ("that", "because"), "require.", problems)
            if "that" not in item.value:
                problems.append(Problem("a rule needs the key that, with an expression", item.place, where))
                continue
            that = item.value["that"]
            because = _text(item, "because", "", problems)
        expression = _expression(that, where, keys, problems)
        if expression is None:
            continue
        if not expression.is_condition:
            message = f"'{expression.text}' is a number, not a condition; compare it, as in {expression.text} == 0"
            problems.append(Problem(message, that.place, where))
            continue
        found.append(Requirement(expression, because, that.place))
    return found
