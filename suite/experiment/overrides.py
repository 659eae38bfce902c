"""Overrides: `key=value` on the command line, with the spelling that Hydra made known.

global_batch=64                  fixes the field, and removes its axis wherever it is swept
schedule=[gpipe,1f1b]            replaces its axis; so does global_batch=8,16,32
model=gpt-tiny  model.layers=8  parallel={tensor: 2}   a section by name or as a mapping
"""

from collections.abc import Iterable

from suite.experiment.errors import BadInput, Place, Problem
from suite.experiment.fields import FIELDS
from suite.experiment.settings import Keys
from suite.experiment.source import Node, parse_value
from suite.experiment.sweep import Factor


def read_overrides(texts: Iterable[str], keys: Keys) -> list[Factor]:
    """The factor that each override puts in charge of its key; every problem at once as BadInput."""
    problems: list[Problem] = []
    found: list[Factor] = []
    axes: set[str] = set()
    for text in texts:
        place = Place(f"override '{text}'")
        word, equals, value_text = text.partition("=")
        word = word.strip()
        if not equals or not word:
            problems.append(Problem("an override is written key=value", place))
            continue
        try:
            values = _values(word, value_text.strip(), place, keys)
        except BadInput as bad:
            problems += bad.problems
            continue
        before = len(problems)
        choices = []
        for value in values:
            change = keys.change(word, value, problems)
            if change is None:
                break
            choices.append((change,))
        if len(problems) > before:
            continue
        axis = keys.target(word, values[0]) or word
        if axis in axes:
            problems.append(Problem(f"{axis} is overridden twice; give it once", place))
        axes.add(axis)
        found.append(Factor(tuple(choices), axis))
    if problems:
        raise BadInput(problems)
    return found


def _values(word: str, text: str, place: Place, keys: Keys) -> list[Node]:
    """The values that an override's text gives: one, or one per point of a new axis."""
    node = _parse(text, place)
    if not isinstance(node.value, list):
        return [node]
    key = keys.field(word)
    takes_list = key in FIELDS and FIELDS[key].is_list
    if takes_list and not any(isinstance(item.value, list) for item in node.value):
        return [node]
    if not node.value:
        raise BadInput([Problem("an axis needs at least one value", place, word)])
    return node.value


def _parse(text: str, place: Place) -> Node:
    if "," in text and text[:1] not in ('"', "'", "[", "{"):
        return parse_value(f"[{text}]", place)  # key=1,2,4
    try:
        return parse_value(text, place)
    except BadInput:
        if text[:1] != "{":
            raise
        return parse_value(f"[{text}]", place)  # key={...},{...}
