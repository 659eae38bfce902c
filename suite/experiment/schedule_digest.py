"""A short hash of the file that a schedule is read from, so that a point knows its program by more than a path."""

import hashlib
from pathlib import Path

from suite.experiment.point import Point

MOST_BYTES = 64 * 2**20  # more than any schedule that can be read


def with_digest(point: Point) -> Point:
    """The point with the digest of its schedule's file, or of the path where there is nothing to read."""
    if point.schedule.file is None or point.schedule.digest is not None:
        return point
    digest = schedule_digest(point.schedule.file) or f"unread-{_hash(point.schedule.file.encode())}"
    return point.model_copy(update={"schedule": point.schedule.model_copy(update={"digest": digest})})


def schedule_digest(path: str) -> str | None:
    """The digest of a file's content; None where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return _hash(file.read(MOST_BYTES + 1))
    except OSError:
        return None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
