"""Records as points: the configuration that a record carries, and whether its id is the configuration's own."""

from collections.abc import Sequence

from pydantic import ValidationError

from suite.experiment.point import Point
from suite.records.schema import Record
from suite.records.store import Problem, StoredRecord


def point_of(record: Record) -> Point:
    """The record's configuration. Raises pydantic's ValidationError where this version cannot read it."""
    return Point.model_validate(record.point)


def why_unreadable(error: ValidationError) -> str:
    """In words, why this version cannot read a configuration."""
    first = error.errors()[0]
    return f"configuration cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}"


def why_not_its_own(record: Record, point: Point) -> str | None:
    """Why the record's numbers cannot be those of its point; None where the id is that of the configuration.

    An invalid record has no numbers, and where its point could not be resolved, an id of another kind.
    """
    if record.status == "invalid" or point.id == record.point_id:
        return None
    return f"edited: its configuration is that of point {point.id}, and the record says {record.point_id}"


def own(records: Sequence[StoredRecord]) -> tuple[list[StoredRecord], list[Problem]]:
    """The records that are their point's own, and those that are not as problems.

    What this version cannot read, because a newer one wrote it, counts as its point's own.
    """
    found, problems = [], []
    for record in records:
        try:
            reason = why_not_its_own(record, point_of(record))
        except ValidationError:
            reason = None
        if reason is None:
            found.append(record)
        else:
            problems.append(Problem(record.file, reason))
    return found, problems
