"""Where the text behind `data.path` is."""

from importlib.util import find_spec
from pathlib import Path

DEFAULT_TEXT = "pydoc_data.topics"  # the language reference's topics, shipped with CPython itself


def find_text(path: str | None) -> Path:
    """The file with the text: a path, or the source of a Python module by name; None takes CPython's topics.

    Raises:
        ValueError: it is neither.
    """
    name = path or DEFAULT_TEXT
    if Path(name).is_file():
        return Path(name)
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise ValueError(
            f"data.path={name}: neither a file nor a Python module with a source; {DEFAULT_TEXT} would work"
        )
    return Path(spec.origin)


def text_problem(path: str | None, seq_length: int) -> str | None:
    """Why this text cannot train a model with this sequence length; None where it can."""
    try:
        size = find_text(path).stat().st_size
    except ValueError as error:
        return str(error)
    return too_short(size, "bytes", seq_length)


def too_short(count: int, unit: str, seq_length: int) -> str | None:
    """Why a text of so many bytes or tokens is too short for this sequence length; None where it is not."""
    if count > seq_length:
        return None
    works = f"model.seq_length={count - 1}" if count > 1 else "a longer text"
    needs = f"model.seq_length={seq_length} needs more than that"
    return f"data.path: the text has {count} {unit}, {needs}; {works} would work"
