"""The one exception for bad input: every problem of a file at once, each with the place it was written at."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file with line and column (from 1), or the text of an override."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, in one sentence, with the key and the place that it concerns."""

    message: str
    place: Place | None = None
    key: str = ""

    def __str__(self) -> str:
        parts = [str(part) for part in (self.place, self.key) if part]
        return ": ".join([*parts, self.message])


class BadInput(Exception):  # noqa: N818  (it names what the user gave, as the exit code does)
    """A file, a name or an override cannot be used. Nothing was started."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = list(dict.fromkeys(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def shown(value: object) -> str:
    """A value as the user would write it in YAML, shortened where it is long."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(shown(item) for item in value) + "]"
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(wanted: str, known: Iterable[str]) -> str | None:
    """The known word that `wanted` is most likely a misspelling of, or None."""
    by_lower = {word.lower(): word for word in known}
    found = difflib.get_close_matches(wanted.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def did_you_mean(wanted: str, known: Iterable[str], *, many: int = 12) -> str:
    """A closing clause for an unknown word: the nearest known one, or all of them where they are few."""
    words = list(known)
    best = nearest(wanted, words)
    if best is not None:
        return f"nearest: {best}"
    if len(words) <= many:
        return "known: " + (", ".join(words) if words else "none")
    return "known: " + ", ".join(words[:many]) + ", ..."
