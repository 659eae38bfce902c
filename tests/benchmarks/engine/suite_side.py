"""The suite's own training step, as a rank of `suite run` has it, and what it says of an iteration."""

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.engine.turns import Step

from suite.experiment.point import Point
from suite.launch.watchdog import Board
from suite.parallel.topology import build_topology
from suite.pipeline.generators import generate
from suite.pipeline.program import Schedule
from suite.pipeline.proof import prove
from suite.training.step import IterationSamples, TrainingStep


class Moments(Board):
    """The board that a rank notes its progress on, and when each phase of the iteration began."""

    began: dict[str, float]

    def note_phase(self, phase: str) -> None:
        """Note a phase by its words."""
        super().note_phase(phase)
        self.began[phase] = perf_counter()


def suites_step(point: Point, device: str) -> Step:
    """This rank's step; it says where the iteration went, see `split_of`, and how long each of its actions took."""
    schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
    topology = build_topology(point.parallel, device, schedule.placement)
    moments = _moments(dist.get_rank() if dist.is_initialized() else 0)
    step = TrainingStep(point, prove(schedule).lowered, topology, torch.device(device), moments)

    def run(iteration: int) -> tuple[float, dict[str, Any]]:
        begun = perf_counter()
        samples = step.run(iteration)
        assert samples.loss is not None
        return samples.loss, {
            "coords": topology.coords,
            "split": split_of(samples, begun, moments.began),
            "window": (samples.actions[0].start, samples.actions[-1].end),
            "durations": [action.end - action.start for action in samples.actions],
        }

    return run


def _moments(rank: int) -> Moments:
    with tempfile.TemporaryDirectory() as folder:  # the board stays mapped
        moments = Moments.create(Path(folder) / "board", range(rank, rank + 1))
    moments.began = {}
    return moments


def split_of(samples: IterationSamples, begun: float, began: dict[str, float]) -> dict[str, float]:
    """Seconds of one rank's iteration: what they went to, all of them.

    `prepare` is what comes before the first action and its input, `between` what the engine takes between actions and
    waits, `sum` the rest of the gradients' reductions, a tied embedding's included, `norm` that of loss and gradient
    norm; both include waiting for other ranks. `update` is clipping and the optimizer.
    """
    first, last = span(samples)
    waits = sum(one.end - one.start for one in samples.waits)
    norm, update = began["reducing the loss and the gradient norm"], began["updating the weights"]
    return {
        "prepare": first - begun,
        **samples.busy_by_action,
        "messages": waits,
        "between": between(samples),
        "sum": norm - last,
        "norm": update - norm,
        "update": samples.optimizer,
    }


def span(samples: IterationSamples) -> tuple[float, float]:
    """When the first action, or the wait for its input, began, and when the last action ended."""
    return min(one.start for one in (*samples.actions[:1], *samples.waits[:1])), samples.actions[-1].end


def between(samples: IterationSamples) -> float:
    """Seconds that were neither an action nor a wait for a message: Python, posting receives and starting sends."""
    first, last = span(samples)
    waits = sum(one.end - one.start for one in samples.waits)
    return last - first - waits - sum(samples.busy_by_action.values())


def simulated_seconds(schedule: Schedule, ranks: list[dict[str, Any]]) -> float:
    """First start to last end of the event simulation in which every action takes what it took, and a message nothing.

    Of the pipeline of the first tensor and data rank.
    """
    first = [one for one in ranks if one["coords"]["tensor"] == one["coords"]["data"] == 0]
    first.sort(key=lambda one: one["coords"]["pipeline"])
    import numpy as np

    starts, ends = schedule.graph.times(np.concatenate([one["durations"] for one in first]))
    return float(ends.max() - starts.min())
