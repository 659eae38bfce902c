"""What is odd about a launch that is ok: a training that is not good, or a slow device."""

import math

from suite.records.schema import Record


def remark(record: Record) -> str | None:
    """Losses that are not finite, skipped steps, and devices and links slower than their like; None where all is well.

    An emulated or simulated launch has no losses. Skipped steps are counted from the first iteration of the training,
    which may have been another launch's.
    """
    losses = (record.iterations.loss if record.iterations else None) or []
    skipped = max((rank.skipped_steps for rank in record.ranks or []), default=0)
    found = []
    if wrong := sum(not math.isfinite(loss) for loss in losses):
        found.append(f"the loss is not finite in {wrong} of {len(losses)} iterations")
    if skipped:
        found.append(
            f"{skipped} optimizer step{'s were' if skipped > 1 else ' was'} skipped, gradients not being finite"
        )
    found += (record.preflight or {}).get("slow", [])
    return "; ".join(found) or None
