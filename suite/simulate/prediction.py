"""What a cluster's hardware is predicted to do with a point: whether it fits, what an iteration takes, a checkpoint."""

from dataclasses import dataclass

from suite.experiment.hardware import Hardware, Storage
from suite.experiment.pace import BYTES
from suite.experiment.point import Point
from suite.measure.flops import parameters
from suite.simulate.iteration import Estimate, estimate, program, sizes_of
from suite.simulate.memory import Footprint, footprint


class NotPredictedError(ValueError):
    """The hardware does not say what the point needs; the message is one sentence."""


@dataclass(frozen=True)
class Prediction:
    """An iteration and the memory it needs."""

    iteration: Estimate
    memory: Footprint


def predicted(point: Point, hardware: Hardware) -> Prediction:
    """Predict a valid point.

    Raises:
        NotPredictedError: the device has no peak at the point's precision.
        ScheduleError: the schedule deadlocks.
    """
    precision, device = point.training.precision, hardware.device
    if precision not in device.peak:
        raise NotPredictedError(
            f"training.precision={precision}: the profile of {device.name} has no peak for it; "
            f"{' or '.join(device.peak)} would work"
        )
    return Prediction(estimate(point, hardware), footprint(point, hardware, program(*sizes_of(point))))


@dataclass(frozen=True)
class CheckpointTimes:
    """A checkpoint's bytes over all ranks, and the seconds that the file system takes to write and to read it."""

    size: int
    save: float
    load: float


def checkpoint_times(point: Point, storage: Storage) -> CheckpointTimes:
    """What the whole training state takes: weights, master weights where those have 16 bits, and moments."""
    element = BYTES[point.training.precision]
    main = max(4, element)
    moments = 2 * main if point.training.optimizer == "adamw" else 0
    size = parameters(point.model) * (element + (main if element == 2 else 0) + moments)
    return CheckpointTimes(size, size / storage.write, size / storage.read)
