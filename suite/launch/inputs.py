"""Whether a record was measured on the files that a point names. A point's id leaves paths out."""

from functools import cache
from typing import Any

from suite.experiment.data_digest import data_digest
from suite.experiment.errors import shown
from suite.experiment.point import Point
from suite.records.schema import Record

_DATA = ("data.path", "data.tokenizer")
_OTHERS = ("data.validation", "checkpoint.path", "checkpoint.weights")


class Inputs:
    """Compares records with points; data files are known by their digest, and each is read once."""

    def __init__(self) -> None:
        self._digest = cache(data_digest)

    def other(self, record: Record, point: Point) -> str | None:
        """In which file the record of this point differs from what is wanted now; None where it does not."""
        wanted = point.model_dump(mode="json")
        digest = record.environment.get("data")
        known = digest is not None and (now := self._digest(point.data)) is not None
        for field in _OTHERS if known else (*_DATA, *_OTHERS):
            before, value = _at(record.point, field), _at(wanted, field)
            if before != value:
                return f"measured with {field}={shown(before)}, and wanted is {shown(value)}"
        if known and now != digest:
            return f"measured on other data (digest {digest}; that of data.path={shown(point.data.path)} is {now})"
        return None


def _at(point: dict[str, Any], field: str) -> Any:
    section, name = field.split(".")
    return point.get(section, {}).get(name)
