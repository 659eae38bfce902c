"""Settings: values with the place they were written at, and how one layer of them covers another.

A configuration on its way to a point is a flat mapping from a key to a setting. A key is a dotted field
(`training.global_batch`, `cluster`) or a variable's name. Flat, because then the base, a scale, an axis value
and an override are all the same thing: a change that is laid over what is there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suite.experiment.errors import Place, Problem, did_you_mean, shown
from suite.experiment.expression import EvaluationError
from suite.experiment.fields import COMPUTED, FIELDS, LONE, NAMED, SECTIONS, SHORT
from suite.experiment.models import MODELS
from suite.experiment.source import Node
from suite.pipeline.names import default_chunks

# What a model's name decides. Dropout and tying are not part of a shape and stay as they were.
_SHAPE = tuple(f"model.{leaf}" for leaf in SECTIONS["model"] if leaf not in ("dropout", "tied_embeddings"))
_RESETS = {"model": _SHAPE, "schedule": tuple(f"schedule.{leaf}" for leaf in SECTIONS["schedule"])}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it was written."""

    value: Any
    place: Place


Settings = dict[str, Setting]


@dataclass(frozen=True)
class Change:
    """A set of settings laid over others. Naming a model or a schedule first removes what is in `resets`."""

    values: Settings
    resets: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)  # as the user wrote it; without a named model's shape

    @property
    def covers(self) -> frozenset[str]:
        """Every key that the change sets or removes."""
        return frozenset(self.values) | frozenset(self.resets)

    def without(self, keys: Iterable[str]) -> "Change | None":
        """The change with the given keys left alone; None where nothing remains of it."""
        gone = frozenset(keys)
        if gone.isdisjoint(self.covers):
            return self
        values = {key: setting for key, setting in self.values.items() if key not in gone}
        if not values:
            return None
        written = {key: value for key, value in self.written.items() if key not in gone}
        return Change(values, tuple(key for key in self.resets if key not in gone), written)


def lay(settings: Settings, changes: Iterable[Change]) -> None:
    """Lay changes over settings: those that replace a section first, so that their order does not matter."""
    narrow = []
    for change in changes:
        if not change.resets:
            narrow.append(change)
            continue
        for key in change.resets:
            settings.pop(key, None)
        settings.update(change.values)
    for change in narrow:
        settings.update(change.values)


def read(settings: Settings, key: str) -> Any:
    """The value of a field, a variable or a computed name, defaults included. Raises EvaluationError."""
    setting = settings.get(key)
    if setting is not None:
        return setting.value
    match key:
        case "ranks":
            return (
                read(settings, "parallel.tensor")
                * read(settings, "parallel.pipeline")
                * read(settings, "parallel.data")
            )
        case "virtual_stages":
            return read(settings, "parallel.pipeline") * read(settings, "schedule.chunks")
        case "microbatches":
            per_step = read(settings, "parallel.data") * read(settings, "training.microbatch")
            return read(settings, "training.global_batch") // per_step
        case "schedule.chunks":
            return default_chunks(read(settings, "schedule.name"))
        case "model.ffn_hidden_size":
            return 4 * read(settings, "model.hidden_size")
    rule = FIELDS[key]
    if rule.required:
        raise EvaluationError(f"{key} is not set")
    return rule.default


_READS = {
    "ranks": ("parallel.tensor", "parallel.pipeline", "parallel.data"),
    "virtual_stages": ("parallel.pipeline", "schedule.chunks"),
    "microbatches": ("training.global_batch", "parallel.data", "training.microbatch"),
    "model.ffn_hidden_size": ("model.ffn_hidden_size", "model.hidden_size"),
}


def keys_read(key: str) -> tuple[str, ...]:
    """The keys whose settings decide the value of `key`."""
    return _READS.get(key, (key,))


class Keys:
    """What the words in a file or an override stand for, given the variables that are declared."""

    def __init__(self, variables: Iterable[str] = ()) -> None:
        self.variables = frozenset(variables)

    @property
    def settable(self) -> list[str]:
        """Every word that a sweep or an override may set."""
        return [*self.variables, *SHORT, *SECTIONS, *FIELDS]

    @property
    def readable(self) -> list[str]:
        """Every word that an expression may use."""
        return [*self.variables, *SHORT, *NAMED, *COMPUTED, *FIELDS]

    def field(self, word: str) -> str | None:
        """The key of the field or variable that `word` names, or None."""
        if word in self.variables or word in FIELDS:
            return word
        return SHORT.get(word)

    def knows(self, word: str) -> bool:
        """Whether `word` can be set at all."""
        return word in SECTIONS or self.field(word) is not None

    def readable_key(self, word: str) -> str | None:
        """The key that `word` stands for in an expression, or None."""
        if word in NAMED:
            return f"{word}.name"
        return word if word in COMPUTED else self.field(word)

    def target(self, word: str, node: Node) -> str | None:
        """What setting `word` to the node's value sets: a section, or the key of a field or variable.

        `data` is a section and the short name of parallel.data; its value tells which is meant.
        """
        if word in SECTIONS and (isinstance(node.value, dict) or word not in SHORT):
            return word
        return self.field(word)

    def change(self, word: str, node: Node, problems: list[Problem]) -> Change | None:
        """The change that setting `word` to the node's value makes; None, and problems, where it is wrong."""
        key = self.target(word, node)
        if key in SECTIONS:
            return section_change(key, node, problems)
        if key is None:
            problems.append(Problem(self._names_nothing(word), node.key_or_value_place, word))
            return None
        if key in self.variables:
            if not isinstance(node.value, bool | int | float | str):
                message = f"got {shown(node.plain())}; a variable is a number, a text, true or false"
                problems.append(Problem(message, node.place, word))
                return None
            return Change({key: Setting(node.value, node.place)}, (), {key: node.value})
        if key in ("model.name", "schedule.name"):
            section, _, leaf = key.partition(".")
            return section_change(section, Node({leaf: node}, node.place, node.key_place), problems)
        value = _checked(key, node, problems, _as_section(word, node) if word in SECTIONS else None)
        return None if value is None else Change({key: value}, (), {key: value.value})

    def _names_nothing(self, word: str) -> str:
        if word in COMPUTED:
            sources = ", ".join(keys_read(word))
            return f"is computed from other fields and cannot be set; set one of {sources}"
        same_leaf = [key for key in FIELDS if key.endswith(f".{word}")]
        if same_leaf:
            return f"the short name is not unique; write one of {', '.join(same_leaf)}"
        return f"names no field, section or variable; {did_you_mean(word, self.settable)}"


def _as_section(section: str, node: Node) -> str | None:
    """The section as a mapping with the node's value in the field whose word it is; None where it is no such word."""
    word = node.value
    if not isinstance(word, str):
        return None
    leaf = next((leaf for leaf, rule in SECTIONS[section].items() if rule.is_choice and rule.accepts(word)), None)
    return None if leaf is None else f"{section}={{{leaf}: {word}}}"


def _example(section: str) -> str:
    """A section's mapping with one field."""
    leaf, rule = next((leaf, rule) for leaf, rule in SECTIONS[section].items() if rule.example is not None)
    return f"{section}={{{leaf}: {rule.example}}}"


def _checked(key: str, node: Node, problems: list[Problem], meant: str | None = None) -> Setting | None:
    """The value as a setting; None, and a problem, where the field does not take it. `meant` would work."""
    value = node.plain()
    complaint = FIELDS[key].complaint(value)
    if complaint is not None:
        hint = "" if meant is None else f", or {meant}"
        problems.append(Problem(complaint + hint, node.place, key))
        return None
    return Setting(tuple(value) if isinstance(value, list) else value, node.place)


def section_change(section: str, node: Node, problems: list[Problem]) -> Change | None:
    """The change that a whole section's value makes: a mapping of fields, or for some its name."""
    given = node.value
    before = len(problems)
    if isinstance(given, str) and section in NAMED:
        given = {"name": Node(given, node.place)}
        bare = True
    else:
        bare = False
    if not isinstance(given, dict):
        or_name = f", or the name of a {section}" if section in NAMED else ""
        works = _as_section(section, node) or _example(section)
        message = f"got {shown(node.plain())}; it must be a mapping of fields{or_name}; {works} would work"
        problems.append(Problem(message, node.place, section))
        return None
    values: Settings = {}
    for leaf, item in given.items():
        rule = SECTIONS[section].get(leaf)
        if rule is None:
            message = f"unknown field; {did_you_mean(leaf, SECTIONS[section])}"
            problems.append(Problem(message, item.key_or_value_place, f"{section}.{leaf}"))
            continue
        setting = _checked(rule.name, item, problems)
        if setting is not None:
            values[rule.name] = setting
    written = {key: setting.value for key, setting in values.items()}
    named = values.get(f"{section}.name") if section in NAMED else None
    if section == "model" and named is not None and named.value is not None:
        values = {**_shape(named, values, bare, problems), **values}
    if len(problems) > before:
        return None
    return Change(values, _RESETS[section] if named else (), written)


def _shape(named: Setting, given: Settings, bare: bool, problems: list[Problem]) -> Settings:
    """The shape that a model's name stands for. An unknown name is a label for a shape given in full."""
    shape = MODELS.get(named.value)
    if shape is not None:
        return {f"model.{leaf}": Setting(value, named.place) for leaf, value in shape.items()}
    missing = [leaf for leaf in ("layers", "hidden_size", "heads") if f"model.{leaf}" not in given]
    if bare or missing:
        message = (
            f"got {shown(named.value)}; it must be a known model, or a label beside layers, hidden_size and "
            f"heads; {did_you_mean(named.value, MODELS, many=len(MODELS))}"
        )
        problems.append(Problem(message, named.place, "model" if bare else "model.name"))
    return {}


def base_change(node: Node, problems: list[Problem]) -> list[Change]:
    """The changes that the base fields among a mapping's entries make; others are left to the caller."""
    changes = []
    for key, item in node.value.items():
        if key in SECTIONS:
            change = section_change(key, item, problems)
        elif key in LONE:
            setting = _checked(key, item, problems)
            change = Change({key: setting}, (), {key: setting.value}) if setting else None
        else:
            continue
        if change is not None:
            changes.append(change)
    return changes
