"""What two launches must have alike, besides their code, for their times to be comparable."""

import hashlib
import json
from collections.abc import Collection, Mapping

from suite.records.schema import Record

Fingerprint = Mapping[str, str]

# Fields in the order in which differences are told.
FIELDS = (
    "source",
    "device",
    "cores",
    "driver",
    "torch",
    "backend",
    "threads_per_rank",
    "node_pool",
    "data",
    "hardware",
    "oversubscribed",
    "flops_version",
)

# The machine that computed a simulation changes nothing.
_OF_SIMULATED = ("source", "device", "node_pool", "hardware", "flops_version")


def fingerprint(record: Record) -> dict[str, str]:
    """The fields of a record's machine and software by name; the configuration is its point's id.

    `node_pool` is the cluster profile with its partition, not the host: nodes of a pool stand for each other.
    """
    environment, libraries = record.environment, record.environment.get("libraries")
    libraries = libraries if isinstance(libraries, dict) else {}
    device, simulated = environment.get("device"), record.source == "simulated"
    on_processor = device in (None, "cpu") and not simulated
    pool = [record.point.get("cluster"), environment.get("partition")]
    backend = [environment.get("backend"), environment.get("backend_version")]
    found = {
        "source": record.source,
        "device": (on_processor and environment.get("cpu")) or device,
        "cores": environment.get("cores") if on_processor else None,
        "driver": environment.get("driver"),
        "torch": libraries.get("torch"),
        "backend": " ".join(str(part) for part in backend if part is not None) or None,
        "threads_per_rank": environment.get("threads_per_rank"),
        "node_pool": "/".join(str(part) for part in pool if part is not None) or None,
        "data": environment.get("data"),
        "hardware": environment.get("hardware"),  # a digest of the constants that predicted it
        "oversubscribed": record.oversubscribed,
        "flops_version": record.flops_version,
    }
    counts = _OF_SIMULATED if simulated else FIELDS
    return {field: str(found[field]) if field in counts and found[field] is not None else "unknown" for field in FIELDS}


def differences(one: Fingerprint, other: Fingerprint, across: Collection[str] = ()) -> list[str]:
    """In words, every field in which they differ; those that are compared on purpose, `across`, are passed over."""
    return [
        f"{field} is {one[field]} in the baseline and {other[field]} in the candidate"
        for field in FIELDS
        if field not in across and one[field] != other[field]
    ]


def fingerprint_id(found: Fingerprint) -> str:
    """Eight hex digits of the fingerprint's SHA-256."""
    return hashlib.sha256(json.dumps(dict(found), sort_keys=True).encode()).hexdigest()[:8]
