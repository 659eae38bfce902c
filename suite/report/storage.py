"""What a point's launches kept and sent: optimizer state, messages, checkpoints; and the loss on held-out tokens."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from suite.records.schema import CheckpointTiming, Record


def storage(records: Sequence[Record]) -> dict[str, Any]:
    """The largest per rank for bytes, medians for times; None where the records say nothing."""
    ranks = [rank for record in records for rank in record.ranks or ()]
    checkpoints = [record.checkpoint for record in records if record.checkpoint]
    saves = [save for checkpoint in checkpoints for save in checkpoint.saves]
    loads = [load for checkpoint in checkpoints for load in checkpoint.loads]
    links = [rank.bytes_by_link or {} for rank in ranks]
    losses = [record.evaluation_loss for record in records if record.evaluation_loss is not None]
    return {
        "optimizer_bytes": max((r.optimizer_bytes for r in ranks if r.optimizer_bytes is not None), default=None),
        "pipeline_bytes": max((link["pipeline"] for link in links if "pipeline" in link), default=None),
        "skipped_steps": max((r.skipped_steps for r in ranks), default=None),
        "checkpoint_bytes": max((save.bytes for save in saves), default=None),
        "checkpoint_save_bytes_per_second": _rate(saves),
        "checkpoint_load_bytes_per_second": _rate(loads),
        "evaluation_loss": median(losses) if losses else None,
    }


def _rate(timings: Sequence[CheckpointTiming]) -> float | None:
    rates = [one.bytes / one.seconds for one in timings if one.seconds]
    return median(rates) if rates else None
