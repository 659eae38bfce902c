"""Records as a table: a row per launch, what ran and how it ended, nothing computed."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from suite.records.store import StoredRecord


def frame(records: Sequence[StoredRecord]) -> pd.DataFrame:
    """One row per record: identity, outcome, machine, and the configuration as columns `section.field`."""
    return pd.DataFrame([{**_identity(record), **dict(_flat(record.point))} for record in records])


def _identity(record: StoredRecord) -> dict[str, Any]:
    return {
        "experiment": record.experiment,
        "scale": record.scale,
        "source": record.source,
        "point_id": record.point_id,
        "revision": record.revision,
        "launch": record.launch,
        "status": record.status,
        "reason": record.reason,
        "oversubscribed": record.oversubscribed,
        "flops_version": record.flops_version,
        "host": record.environment.get("host"),
        "device": record.environment.get("device"),
        "cpu": record.environment.get("cpu"),
        "started": record.started,
        "finished": record.finished,
        "file": record.file,
    }


def _flat(fields: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", " ".join(map(str, value)) if isinstance(value, list) else value
