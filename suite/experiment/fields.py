"""The fields of a point by dotted name, what each accepts in plain words, and what the keys of a file mean.

Everything is read off the sections in `point`, so that a field added there needs no second entry here.
"""

import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from suite.experiment.errors import nearest, shown
from suite.experiment.point import Point


@dataclass(frozen=True)
class Rule:
    """What one field accepts."""

    name: str  # dotted
    kind: Any  # the type with its constraints
    required: bool
    default: Any

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    @cached_property
    def must_be(self) -> str:
        """What the field accepts, in words that follow 'must be'."""
        return _describe(self.kind)

    @cached_property
    def is_list(self) -> bool:
        """Whether one value of the field is itself a list."""
        return any(get_origin(option) is tuple for option in _options(self.kind))

    @cached_property
    def example(self) -> Any:
        """A value of the field: its default, or the smallest; None where it has neither."""
        smallest = (_bounds(_constraints(option)[1]).get("ge") for option in _options(self.kind))
        return next((value for value in (self.default, *smallest) if value is not None and self.accepts(value)), None)

    @property
    def is_choice(self) -> bool:
        """Whether the field takes one of a few words, which its description lists."""
        return get_origin(self.kind) is Literal or _constraints(self.kind)[0] is bool

    def accepts(self, value: Any) -> bool:
        """Whether `value` is a value of the field."""
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    def complaint(self, value: Any) -> str | None:
        """What is wrong with `value` in one sentence, with one that would do; None if it does."""
        if self.accepts(value):
            return None
        sentence = f"got {shown(value)}; it must be {_describe(self.kind, value)}"
        for candidate in _candidates(value, self.kind):
            if self.accepts(candidate):
                return f"{sentence}; nearest: {_written(candidate)}"
        if self.example is None or self.is_choice:
            return sentence
        return f"{sentence}; {_written(self.example)} would work"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def rules_of(section: type[BaseModel], prefix: str = "") -> dict[str, Rule]:
    """A rule per field of a pydantic model, by field name."""
    return {
        name: Rule(prefix + name, _with_constraints(field), field.is_required(), field.default)
        for name, field in section.model_fields.items()
    }


def _with_constraints(field: FieldInfo) -> Any:
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return kind


def _options(kind: Any) -> list[Any]:
    """The alternatives of a union, or the type itself."""
    if get_origin(kind) in (Union, types.UnionType):
        return [option for part in get_args(kind) for option in _options(part)]
    return [kind]


def _constraints(kind: Any) -> tuple[Any, list[Any]]:
    """A type without its annotations, and the annotations."""
    if get_origin(kind) is not Annotated:
        return kind, []
    base, *given = get_args(kind)
    flat = [item for entry in given for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]
    return base, flat


def _describe(kind: Any, value: Any = None) -> str:
    """What a type accepts. Its upper limit, which is mostly far from any use, only where `value` is above it."""
    base, constraints = _constraints(kind)
    if get_origin(base) in (Union, types.UnionType):
        return " or ".join(_describe(option, value) for option in _options(base) if option is not type(None))
    if get_origin(base) is Literal:
        choices = [str(choice) for choice in get_args(base)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if get_origin(base) is tuple:
        items = get_args(base)
        if items[-1] is Ellipsis:
            return f"a list in which every entry is {_describe(items[0])}"
        return f"a list of {len(items)} entries, each {_describe(items[0])}"
    if get_origin(base) is dict:
        return f"a mapping in which every value is {_describe(get_args(base)[1])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[base]
    if (step := _step(constraints)) is not None:
        words = f"a multiple of {step}"
    bounds = _bounds(constraints)
    if not (isinstance(value, int | float) and value > bounds.get("le", value)):
        bounds.pop("le", None)
    phrases = {"ge": "of at least", "gt": "above", "le": "up to", "lt": "below"}
    limits = [f"{phrase} {bounds[bound]:.15g}" for bound, phrase in phrases.items() if bound in bounds]
    return " ".join([words, " and ".join(limits)]).strip()


def _bounds(constraints: Iterable[Any]) -> dict[str, Any]:
    """The limits among a type's constraints, by the names that pydantic gives them."""
    return {
        name: getattr(constraint, name)
        for constraint in constraints
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }


def _step(constraints: Iterable[Any]) -> Any:
    """What a number has to be a multiple of, among a type's constraints; None where there is no such one."""
    return next((one.multiple_of for one in constraints if hasattr(one, "multiple_of")), None)


def _candidates(value: Any, kind: Any) -> Iterable[Any]:
    """Values that the user may have meant, likeliest first; the caller tries each."""
    for option in _options(kind):
        base, constraints = _constraints(option)
        if get_origin(base) is tuple:
            entry = Rule("", get_args(base)[0], False, None)
            if isinstance(value, list):
                meant = ((c for c in _candidates(item, entry.kind) if entry.accepts(c)) for item in value)
                yield tuple(next(words, item) for words, item in zip(meant, value, strict=True))
            base, constraints = _constraints(entry.kind)
        if get_origin(base) is Literal and isinstance(value, str):
            close = nearest(value, get_args(base))
            if close is not None:
                yield close
        if base is bool and isinstance(value, str) and value.lower() in ("yes", "on", "no", "off", "true", "false"):
            yield value.lower() in ("yes", "on", "true")
        if base in (int, float) and not isinstance(value, bool):
            if isinstance(value, str):
                try:
                    value = float(value)
                except ValueError:
                    continue
            if not isinstance(value, int | float):
                continue
            yield value
            if abs(value) < 1e15:
                step = _step(constraints) or 1
                yield round(value / step) * step
            bounds = _bounds(constraints)
            if value < bounds.get("ge", value):
                yield bounds["ge"]
            if value > bounds.get("le", value):
                yield bounds["le"]


SECTIONS: dict[str, dict[str, Rule]] = {
    name: rules_of(field.annotation, f"{name}.")
    for name, field in Point.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
LONE: dict[str, Rule] = {name: rule for name, rule in rules_of(Point).items() if name not in SECTIONS}
FIELDS: dict[str, Rule] = {rule.name: rule for rules in SECTIONS.values() for rule in rules.values()} | LONE
REQUIRED: tuple[str, ...] = tuple(name for name, rule in FIELDS.items() if rule.required)
NAMED = ("model", "schedule")  # sections that a bare name can stand for
COMPUTED = ("ranks", "microbatches", "virtual_stages")  # readable in expressions, never set


def _short_names() -> dict[str, str]:
    """The last part of a dotted name where only one section has it."""
    found: dict[str, list[str]] = {}
    for dotted in FIELDS:
        found.setdefault(dotted.rpartition(".")[2], []).append(dotted)
    return {short: dotted[0] for short, dotted in found.items() if len(dotted) == 1}


SHORT: dict[str, str] = _short_names()


def short(key: str) -> str:
    """The shortest name that people may write for a key."""
    leaf = key.rpartition(".")[2]
    if SHORT.get(leaf) == key:
        return leaf
    return key.removesuffix(".name")
