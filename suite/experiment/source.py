"""YAML with places: every value knows the line and column it was written at.

Scalars follow YAML 1.2: `1e-3` is a number, only `true` and `false` are booleans, `010` is ten. Keys must be
text and must not repeat. Nothing is ever constructed from a tag.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from suite.experiment.errors import BadInput, Place, Problem

_MAX_NODES = 200_000  # aliases can expand a small file without end
_MAX_DEPTH = 50

_STR = "tag:yaml.org,2002:str"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_BOOL = "tag:yaml.org,2002:bool"
_NULL = "tag:yaml.org,2002:null"
_MAP = "tag:yaml.org,2002:map"
_SEQ = "tag:yaml.org,2002:seq"


class _Loader(yaml.SafeLoader):
    """Composes nodes only; its resolvers are those of YAML 1.2's core schema, and `_` between digits."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own interface)


_FLOAT_FORM = (
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
for _tag, _form, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (_FLOAT, _FLOAT_FORM, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_form})$"), _first)


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place: a scalar, a list of nodes, or a mapping from text to nodes."""

    value: Any
    place: Place
    key_place: Place | None = None

    @property
    def key_or_value_place(self) -> Place:
        """The place of the key where the value belongs to one, else the value's own."""
        return self.key_place or self.place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_yaml(path: Path) -> Node:
    """The file's document as nodes; syntax errors, repeated keys and unreadable files raise BadInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput([Problem(f"cannot be read: {error.strerror or error}", Place(str(path)))]) from None
    except UnicodeDecodeError:
        raise BadInput([Problem("is not UTF-8 text", Place(str(path)))]) from None
    return _compose(text, str(path), None)


def parse_value(text: str, place: Place) -> Node:
    """A value given as text outside a file; all of its nodes carry `place`. Raises BadInput."""
    return _compose(text, place.source, place)


def _compose(text: str, source: str, fixed: Place | None) -> Node:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = fixed or (Place(source, mark.line + 1, mark.column + 1) if mark else Place(source))
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise BadInput([Problem(f"not valid YAML: {reason}", place)]) from None
    except yaml.reader.ReaderError as error:
        message = f"not valid YAML: the character U+{error.character:04X} is not allowed"
        raise BadInput([Problem(message, fixed or Place(source))]) from None
    except RecursionError:
        raise BadInput([Problem("is nested too deeply", fixed or Place(source))]) from None
    if root is None:
        return Node(None, fixed or Place(source, 1, 1))
    reader = _Reader(source, fixed)
    node = reader.node(root, None, 0)
    if reader.problems:
        raise BadInput(reader.problems)
    return node


class _Reader:
    """Turns PyYAML's nodes into ours and collects what is wrong with them."""

    def __init__(self, source: str, fixed: Place | None) -> None:
        self.source = source
        self.fixed = fixed
        self.problems: list[Problem] = []
        self.count = 0

    def place(self, node: yaml.Node) -> Place:
        if self.fixed:
            return self.fixed
        mark = node.start_mark
        return Place(self.source, mark.line + 1, mark.column + 1)

    def node(self, given: yaml.Node, key_place: Place | None, depth: int) -> Node:
        place = self.place(given)
        self.count += 1
        if depth > _MAX_DEPTH or self.count > _MAX_NODES:
            raise BadInput([Problem("is nested too deeply or expands without end", place)])
        if not isinstance(given, yaml.ScalarNode) and given.tag not in (_MAP, _SEQ):
            self.refuse_tag(given, place)
        if isinstance(given, yaml.MappingNode):
            return Node(self.mapping(given, depth), place, key_place)
        if isinstance(given, yaml.SequenceNode):
            return Node([self.node(item, None, depth + 1) for item in given.value], place, key_place)
        return Node(self.scalar(given, place), place, key_place)

    def mapping(self, given: yaml.MappingNode, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for key_node, value_node in given.value:
            place = self.place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem("a key must be text, not a list or a mapping", place))
                continue
            key = key_node.value
            if key in entries:
                first = entries[key].key_place
                where = f" on line {first.line}" if first and first.line else ""
                message = f"the key is given twice; it was already given{where}; keep one of them"
                self.problems.append(Problem(message, place, key))
                continue
            entries[key] = self.node(value_node, place, depth + 1)
        return entries

    def scalar(self, given: yaml.Node, place: Place) -> Any:
        text = given.value
        digits = text.replace("_", "").lower()
        try:
            if given.tag == _STR:
                return text
            if given.tag == _NULL:
                return None
            if given.tag == _BOOL:
                return digits == "true"
            if given.tag == _INT:
                return int(digits, 0) if digits.startswith(("0x", "0o")) else int(digits)
            if given.tag == _FLOAT:
                return float(digits.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            self.problems.append(Problem(f"'{text[:40]}' is not a number that can be read", place))
            return None
        self.refuse_tag(given, place)
        return None

    def refuse_tag(self, given: yaml.Node, place: Place) -> None:
        self.problems.append(Problem(f"the tag {given.tag} is not supported; write the plain value", place))
