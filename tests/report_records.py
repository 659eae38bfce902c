"""Synthetic records for the tests of the report."""

import random

from suite.experiment.point import Point
from suite.records.schema import Record
from suite.records.store import Store

MODEL = {"layers": 4, "hidden_size": 64, "heads": 4, "vocab_size": 1000, "seq_length": 32, "dropout": 0.0}
PEAK = 5e10


def record_of(layout=(1, 1, 1), schedule="1f1b", chunks=1, batch=8, launch=0, **changes):
    """A plausible record with every field, its samples drawn from the point's id and the launch."""
    tensor, pipeline, data = layout
    point = Point.model_validate(
        {
            "model": MODEL | changes.pop("model", {}),
            "parallel": {"tensor": tensor, "pipeline": pipeline, "data": data},
            "schedule": {"name": schedule, "chunks": chunks},
            "training": {"global_batch": batch, "microbatch": 1} | changes.pop("training", {}),
            "measure": {"warmup": 2, "iterations": 5, "trace": True} | changes.pop("measure", {}),
            "pace": changes.pop("pace", {}),
        }
    )
    noise = random.Random(f"{point.id}-{launch}")
    ranks, slots = point.parallel.ranks, point.microbatches * chunks
    seconds = [0.2 / ranks * noise.uniform(1, 1.1) for _ in range(7)]
    whole = [0.9 * value for value in seconds]
    ideal = (pipeline - 1) / slots
    fields = {
        "experiment": "synthetic",
        "scale": "laptop",
        "point_id": point.id,
        "source": "measured",
        "point": point.model_dump(mode="json"),
        "status": "ok",
        "iterations": {
            "seconds": seconds,
            "loss": [7 - 0.3 * step + 1e-7 * ranks * noise.random() for step in range(7)],
            "grad_norm": [1.0] * 7,
            "warmup": 2,
            "forward_backward_seconds": whole,
        },
        "ranks": [
            {
                "rank": rank,
                "coords": {
                    "pipeline": rank // (tensor * data),
                    "data": rank // tensor % data,
                    "tensor": rank % tensor,
                },
                "peak_memory_bytes": 3_000_000 + 1000 * rank,
                "busy_seconds": [value / (1 + ideal) * noise.uniform(0.9, 1) for value in whole],
                "busy_by_action": {},
            }
            for rank in range(ranks)
        ],
        "trace": {"iteration": 6, "spans": spans_of(pipeline, point.microbatches, chunks)},
        "oversubscribed": False,
        "flops_version": 1,
        "environment": {
            "host": "node-1",
            "device": "cpu",
            "cpu": "a processor",
            "threads_per_rank": 1,
            "cores": 8,
            "peak_flops_per_rank": PEAK,
            "peak_source": "measured here: largest of 5 matrix products, 1 thread",
        },
        "started": "2026-01-02T03:04:05+00:00",
        "finished": f"2026-01-02T03:0{5 + launch}:05+00:00",
    }
    return Record.model_validate(fields | changes)


def spans_of(pipeline, microbatches, chunks):
    """Forward and backward passes in a plain staircase; only the drawing needs them."""
    spans = []
    for chunk in range(chunks):
        for rank in range(pipeline):
            for index in range(microbatches):
                start = 0.001 * (chunk * microbatches + index + rank)
                later = 0.002 * (microbatches * chunks + chunk * microbatches + index + pipeline - rank)
                stage = chunk * pipeline + rank
                place = {"rank": rank, "stage": stage, "microbatch": index}
                spans.append({**place, "kind": "F", "start": start, "end": start + 0.001})
                spans.append({**place, "kind": "BW", "start": later, "end": later + 0.002})
    return spans


LAYOUTS = [
    *(((1, 1, 1), "1f1b", 1), ((1, 1, 2), "1f1b", 1), ((2, 1, 1), "1f1b", 1), ((1, 4, 1), "gpipe", 1)),
    *(((1, 4, 1), "1f1b", 1), ((1, 2, 1), "interleaved", 2), ((2, 2, 2), "1f1b", 1)),
]


def written(root, *records, revision="abc1234"):
    """The records as a store gives them back."""
    for record in records:
        Store(root).write(record, revision)
    found, problems = Store(root).read("synthetic")
    assert problems == []
    return found
