"""One iteration as every rank ran it: in the record for drawing, and as a file that Perfetto opens."""

import json
from typing import Any, NamedTuple

from suite.training.step import IterationSamples


class TraceRow(NamedTuple):
    """One rank's traced iteration."""

    rank: int
    coords: dict[str, int]
    samples: IterationSamples


def _origin(rows: list[TraceRow]) -> float:
    """The first start of an action on any rank."""
    return min(action.start for row in rows for action in row.samples.actions)


def record_trace(iteration: int, rows: list[TraceRow]) -> dict[str, Any]:
    """The record's trace: one pipeline's actions (first tensor and data coordinate)."""
    shown = sorted((row.coords["pipeline"], row) for row in rows if row.coords["tensor"] == row.coords["data"] == 0)
    origin = _origin([row for _, row in shown])
    spans = [
        {
            "rank": rank,
            "kind": action.kind,
            "stage": action.stage,
            "microbatch": action.microbatch,
            "replica": action.replica,
            "start": action.start - origin,
            "end": action.end - origin,
        }
        for rank, row in shown
        for action in row.samples.actions
    ]
    return {"iteration": iteration, "spans": spans}


def perfetto(rows: list[TraceRow]) -> str:
    """A Chrome trace (JSON): a process a rank; its actions, waits for messages and gradient reductions as threads.

    All ranks of a host share one clock.
    """
    origin = _origin(rows)
    events: list[dict[str, Any]] = []

    def span(rank: int, thread: str, name: str, start: float, end: float) -> None:
        times = {"ts": (start - origin) * 1e6, "dur": (end - start) * 1e6}
        events.append({"ph": "X", "pid": rank, "tid": thread, "name": name, "cat": thread, **times})

    for row in rows:
        place = ", ".join(f"{name} {index}" for name, index in row.coords.items())
        events.append(
            {"ph": "M", "pid": row.rank, "name": "process_name", "args": {"name": f"rank {row.rank}: {place}"}}
        )
        for action in row.samples.actions:
            name = f"{action.kind} {action.stage}.{action.microbatch}"
            span(row.rank, "actions", name, action.start, action.end)
        for wait in row.samples.waits:
            span(row.rank, "messages", wait.message, wait.start, wait.end)
        for reduction in row.samples.reductions:
            name = f"reduce {reduction.bytes} bytes of stage {reduction.stage}"
            span(row.rank, "reductions", name, reduction.start, reduction.end)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
