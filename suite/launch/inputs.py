"""Whether a record is of the files that a point names, and of the constants that its cluster has now.

A point's id leaves paths out, and a cluster's constants.
"""

from functools import cache
from typing import Any

from suite.experiment.catalogue import load_cluster
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
        self._cluster = cache(load_cluster)

    def other(self, record: Record, point: Point) -> str | None:
        """In which file or constants the record differs from what the point wants now; None where it does not."""
        if record.source == "simulated":
            return self._other_hardware(record, point)
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

    def _other_hardware(self, record: Record, point: Point) -> str | None:
        hardware = self._cluster(point.cluster).hardware_for(point)
        digest, before = hardware.digest if hardware else None, record.environment.get("hardware")
        if digest == before:
            return None
        return f"predicted with other constants of cluster {point.cluster} (digest {before}; they now have {digest})"


def _at(point: dict[str, Any], field: str) -> Any:
    section, name = field.split(".")
    return point.get(section, {}).get(name)
