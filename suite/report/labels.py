"""Short names of points in figures: layout, schedule, and what else differs between the points."""

import textwrap
from collections.abc import Mapping, Sequence

from suite.experiment.point import Point

LINE = 34  # characters of a line beside a bar


def labels(points: Sequence[Point], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """A label for each point: layout, schedule and the columns' values, by heading.

    A model is named by its name where names tell all models apart, or else by the sizes that differ.
    """
    parts = [[point.layout, point.schedule_label] for point in points]
    for heading, values in columns.items():
        shown = _models(points) if heading == "model" else [_told(heading, value) for value in values]
        for part, text in zip(parts, shown, strict=True):
            part.append(text)
    return [" ".join(filter(None, part)) for part in parts]


def _told(heading: str, value: str) -> str:
    """A field that the point does not have is not told."""
    return "" if value == "-" else f"{heading}={value}"


def beside_bar(label: str, head: str) -> str:
    """The label on one line, or on two, after `head` that it begins with; a line's length is limited."""
    if len(label) <= LINE:
        return label
    rest = label.removeprefix(head).strip()
    return "\n".join(clipped(line, LINE) for line in (head, rest) if line)


def clipped(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def wrapped(text: str, width: int) -> str:
    """Every line of the text broken to `width` characters."""
    return "\n".join(textwrap.fill(line, width) for line in text.split("\n"))


def _models(points: Sequence[Point]) -> list[str]:
    names = [point.model.name for point in points]
    shapes = [_shape(point) for point in points]
    if None not in names and len(set(names)) == len({tuple(shape.items()) for shape in shapes}):
        return [str(name) for name in names]
    differing = [key for key in shapes[0] if len({shape[key] for shape in shapes}) > 1]
    return [" ".join(f"{key}={shape[key]}" for key in differing) for shape in shapes]


def _shape(point: Point) -> dict[str, str]:
    model = point.model
    usual = model.ffn_hidden_size == 4 * model.hidden_size
    return {
        "l": str(model.layers),
        "h": str(model.hidden_size),
        "a": str(model.heads),
        "s": str(model.seq_length),
        "V": str(model.vocab_size),
        "f": "4h" if usual else str(model.ffn_hidden_size),
        "embeddings": "tied" if model.tied_embeddings else "untied",
    }
