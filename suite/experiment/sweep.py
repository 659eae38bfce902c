"""The sweep as declared: blocks whose factors multiply; several blocks are a union.

grid:   every axis is a factor        {schedule: [gpipe, 1f1b], global_batch: [8, 16]}
zip:    one factor, axes side by side {tensor: [1, 2, 4], global_batch: [8, 16, 32]}
cases:  one factor, point by point    [{schedule: gpipe}, {schedule: interleaved, chunks: 4}]
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suite.experiment.errors import Place, Problem, did_you_mean, shown
from suite.experiment.settings import Change, Keys
from suite.experiment.source import Node

Choice = tuple[Change, ...]

_PARTS = ("grid", "zip", "cases")


@dataclass(frozen=True)
class Factor:
    """Choices of which every point of the block takes one. `axis` is a grid axis's key."""

    choices: tuple[Choice, ...]
    axis: str = ""

    @property
    def written(self) -> set[str]:
        """The keys that any of the choices sets in so many words."""
        return {key for choice in self.choices for change in choice for key in change.written}

    @property
    def covers(self) -> set[str]:
        """The keys that any of the choices sets or removes."""
        return {key for choice in self.choices for change in choice for key in change.covers}


@dataclass(frozen=True)
class Block:
    """Factors that multiply."""

    factors: tuple[Factor, ...] = ()

    @property
    def size(self) -> int:
        """Number of combinations."""
        return math.prod(len(factor.choices) for factor in self.factors)

    def combinations(self) -> Iterator[tuple[Choice, ...]]:
        """Every combination of one choice per factor; the last factor varies fastest."""
        return itertools.product(*(factor.choices for factor in self.factors))

    def overridden(self, factors: Sequence[Factor]) -> "Block":
        """The block with other factors in charge of the keys they cover, each in place of its old axis."""
        covers = frozenset().union(*(factor.covers for factor in factors))
        added = {factor.axis: factor for factor in factors}
        kept: list[Factor] = []
        for old in self.factors:
            if old.axis in added:
                kept.append(added.pop(old.axis))
                continue
            choices = tuple(
                tuple(left for change in choice if (left := change.without(covers))) for choice in old.choices
            )
            if any(choices):
                kept.append(Factor(choices, old.axis))
        return Block((*kept, *added.values()))


Sweep = tuple[Block, ...]


def read_sweep(node: Node | None, keys: Keys, problems: list[Problem]) -> Sweep:
    """The sweep that a file declares; one block without factors, hence one point, where it declares none."""
    if node is None:
        return (Block(),)
    if isinstance(node.value, list):
        if not node.value:
            problems.append(Problem("is an empty list; give at least one block, or leave it out", node.place, "sweep"))
        return tuple(_block(item, keys, problems) for item in node.value)
    return (_block(node, keys, problems),)


def _block(node: Node, keys: Keys, problems: list[Problem]) -> Block:
    if not isinstance(node.value, dict):
        message = f"got {shown(node.plain())}; it must be a mapping of grid, zip and cases, or a list of such"
        problems.append(Problem(message, node.place, "sweep"))
        return Block()
    if not node.value:
        problems.append(Problem("is empty; give any of grid, zip and cases, or leave it out", node.place, "sweep"))
    factors: list[Factor] = []
    for part, item in node.value.items():
        match part:
            case "grid":
                factors += _axes(item, "sweep.grid", keys, problems)
            case "zip":
                factors += _zipped(_axes(item, "sweep.zip", keys, problems), item, problems)
            case "cases":
                factors += _cases(item, keys, problems)
            case _:
                message = f"unknown key; {did_you_mean(part, _PARTS)}"
                if keys.field(part) is not None:
                    message = f"is an axis and belongs under grid or zip: sweep: {{grid: {{{part}: [...]}}}}"
                problems.append(Problem(message, item.key_place, f"sweep.{part}"))
    _refuse_overlap(factors, node.place, problems)
    return Block(tuple(factors))


def _axes(node: Node, where: str, keys: Keys, problems: list[Problem]) -> list[Factor]:
    if not isinstance(node.value, dict) or not node.value:
        message = f"got {shown(node.plain())}; it must be a mapping from a key to the list of its values"
        problems.append(Problem(message, node.place, where))
        return []
    return [
        factor for key, item in node.value.items() if (factor := _axis(key, item, where, keys, problems)) is not None
    ]


def _axis(key: str, node: Node, where: str, keys: Keys, problems: list[Problem]) -> Factor | None:
    if not isinstance(node.value, list) or not node.value:
        hint = f"[{shown(node.plain())}]" if not isinstance(node.value, list) else "at least one value"
        message = f"got {shown(node.plain())}; an axis is a list of values; write {hint}"
        problems.append(Problem(message, node.place, f"{where}.{key}"))
        return None
    before = len(problems)
    choices = []
    target = key
    for item in node.value:
        change = keys.change(key, Node(item.value, item.place, node.key_place), problems)
        if change is not None:
            choices.append((change,))
            target = keys.target(key, item) or key
        elif not keys.knows(key):
            break  # said once, not once per value
    if len(problems) > before:
        return None
    return Factor(tuple(choices), target)


def _zipped(axes: list[Factor], node: Node, problems: list[Problem]) -> list[Factor]:
    if not axes:
        return []
    lengths = {len(axis.choices) for axis in axes}
    if len(lengths) > 1:
        if isinstance(node.value, dict) and len(axes) == len(node.value):
            sizes = ", ".join(f"{key} has {len(item.value)}" for key, item in node.value.items())
            message = f"axes that are walked together need equally many values; {sizes}"
            problems.append(Problem(message, node.key_or_value_place, "sweep.zip"))
        return []
    rows = zip(*(axis.choices for axis in axes), strict=True)
    _refuse_overlap(axes, node.key_or_value_place, problems)
    return [Factor(tuple(tuple(change for choice in row for change in choice) for row in rows))]


def _cases(node: Node, keys: Keys, problems: list[Problem]) -> list[Factor]:
    if not isinstance(node.value, list) or not node.value:
        message = f"got {shown(node.plain())}; it must be a list of points, each a mapping from a key to a value"
        problems.append(Problem(message, node.place, "sweep.cases"))
        return []
    choices = []
    for item in node.value:
        if not isinstance(item.value, dict):
            message = f"got {shown(item.plain())}; a case must be a mapping from a key to a value"
            problems.append(Problem(message, item.place, "sweep.cases"))
            continue
        changes = [keys.change(key, value, problems) for key, value in item.value.items()]
        found = tuple(change for change in changes if change is not None)
        _refuse_overlap([Factor(((change,),)) for change in found], item.place, problems)
        choices.append(found)
    return [Factor(tuple(choices))] if choices else []


def _refuse_overlap(factors: list[Factor], place: Place, problems: list[Problem]) -> None:
    """Two factors that set the same field would overwrite each other silently."""
    for one, other in itertools.combinations(factors, 2):
        for key in sorted(one.written & other.written):
            problems.append(Problem("is set twice in one sweep; keep one of the two", place, key))
