"""What is measured: one GPT, one batch, one optimizer step, and layouts written (tensor, pipeline, data)."""

from collections.abc import Mapping
from typing import Any

from suite.experiment.point import Point

GPT: Mapping[str, Any] = {
    "layers": 8,
    "hidden_size": 512,
    "heads": 8,
    "vocab_size": 8192,
    "seq_length": 256,
    "dropout": 0.0,  # torch's parts cannot draw the suite's masks
}
BATCH = 8  # sequences of an iteration: 2048 tokens

Layout = tuple[int, int, int]


def point(
    layout: Layout,
    microbatch: int,
    schedule: str = "1f1b",
    split: tuple[float, ...] | None = None,
    shape: Mapping[str, Any] = GPT,
    batch: int = BATCH,
) -> Point:
    """The suite's point of a layout: fp32, AdamW, gradients clipped at a norm of 1.

    `split` are the layers of each virtual stage.
    """
    tensor, pipeline, data = layout
    return Point.model_validate(
        {
            "model": dict(shape),
            "parallel": {"tensor": tensor, "pipeline": pipeline, "data": data},
            "schedule": {"name": schedule, "split": split},
            "training": {"global_batch": batch, "microbatch": microbatch},
        }
    )
