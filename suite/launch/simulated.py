"""The simulated backend: no processes, the event simulation of the very program that the engine would run.

The times are those that the cluster's hardware is predicted to take, or those of the point's `pace`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from suite.experiment.cluster import Cluster
from suite.experiment.hardware import Hardware
from suite.experiment.pace import costs, network
from suite.experiment.point import Point, Schedule
from suite.launch.job import Job, now
from suite.launch.sweep import Watcher
from suite.launch.todo import Todo, record_invalid
from suite.measure.flops import FLOPS_VERSION
from suite.measure.provenance import host_environment, revision
from suite.pipeline.program import ScheduleError
from suite.pipeline.proof import prove
from suite.pipeline.summary import predict
from suite.pipeline.timeline import Timeline
from suite.records.schema import Record
from suite.records.store import Store
from suite.simulate.iteration import program, sizes_of
from suite.simulate.memory import Footprint
from suite.simulate.prediction import NotPredictedError, checkpoint_times, predicted

NO_PEAK = "simulated from given times of the actions, not from a device"


@dataclass(frozen=True)
class SimulatedSweep:
    """Where a sweep's simulated records go."""

    experiment: str
    scale: str
    store: Path
    cluster: Callable[[str], Cluster]  # the profile by name

    def run(self, work: Todo, watcher: Watcher) -> Iterator[tuple[Job, Record]]:
        """Simulate what is missing; yields each point with its record."""
        for planned in work.invalid:
            record_invalid(planned, self.experiment, self.scale, "simulated", self.store)
        for point, count in work.missing:
            for _ in range(count):
                job = self._job(point)
                watcher.start(job)
                record = simulate(job, self.cluster(point.cluster).hardware_for(point))
                job.write(record)
                watcher.end(job, record)
                yield job, record

    def _job(self, point: Point) -> Job:
        name = revision()
        launch = Store(self.store).next_launch(self.experiment, self.scale, "simulated", point.id, name)
        return Job(
            experiment=self.experiment,
            scale=self.scale,
            source="simulated",
            point=point,
            revision=name,
            launch=launch,
            store=self.store.absolute(),
            threads_per_rank=1,
            device="cpu",
        )


def simulate(job: Job, hardware: Hardware | None) -> Record:
    """One iteration of a point's program on the hardware, or without any at the times of its `pace`."""
    started = now()
    environment = {**host_environment(), "cluster": job.point.cluster}
    try:
        fields = _from_pace(job.point) if hardware is None else _from_hardware(job.point, hardware)
    except (ScheduleError, NotPredictedError) as error:
        return job.record("failed", str(error), started, environment=environment)
    environment |= fields.pop("environment")
    reason = fields.pop("reason", None)
    if reason is not None:
        return job.record("oom", reason, started, environment=environment, **fields)
    return job.record(
        "ok", None, started, environment=environment, flops_version=FLOPS_VERSION, oversubscribed=False, **fields
    )


@cache
def _prove(options: Schedule, pipeline: int, microbatches: int) -> None:
    """Prove a program once for all points that share it. Raises ScheduleError."""
    prove(program(options, pipeline, microbatches))


def _from_hardware(point: Point, hardware: Hardware) -> dict[str, Any]:
    _prove(*sizes_of(point))
    found = predicted(point, hardware)
    device, iteration = hardware.device, found.iteration
    fields: dict[str, Any] = {
        "environment": {
            "device": device.name,
            "software": hardware.software.name,
            "hardware": hardware.digest,
            "peak_flops_per_rank": device.peak[point.training.precision],
            "peak_source": device.source,
        },
        "memory": found.memory.as_json(),
    }
    if found.memory.verdict == "does not fit":
        return fields | {"reason": _why_not(found.memory)}
    timed = {
        "seconds": [iteration.seconds],
        "warmup": 0,
        "forward_backward_seconds": [iteration.forward_backward_seconds],
    }
    return fields | {
        "iterations": timed,
        "breakdown_seconds": {part: [seconds] for part, seconds in iteration.breakdown.items()},
        "ranks": [_rank(rank, [busy], {}) for rank, busy in enumerate(iteration.busy_seconds)],
        "checkpoint": _checkpoints(point, hardware),
    }


def _why_not(memory: Footprint) -> str:
    return (
        f"predicted not to fit: pipeline rank {memory.rank} needs {memory.predicted / 1e9:.1f} GB, "
        f"and the device has {memory.capacity / 1e9:.1f} GB"
    )


def _checkpoints(point: Point, hardware: Hardware) -> dict[str, Any] | None:
    """One save and the reading back that follows it, where the point asks for checkpoints."""
    if hardware.storage is None or not (point.checkpoint.every or point.checkpoint.load):
        return None
    times = checkpoint_times(point, hardware.storage)
    save = {"iteration": point.checkpoint.every, "bytes": times.size, "seconds": times.save}
    load = {"iteration": point.checkpoint.every, "bytes": times.size, "seconds": times.load}
    return {"saves": [save] if point.checkpoint.every else [], "loads": [load]}


def _from_pace(point: Point) -> dict[str, Any]:
    times = predict(program(*sizes_of(point)), costs(point.pace), network(point)).times
    return {
        "environment": {"peak_reason": NO_PEAK},
        "trace": _trace(times) if point.measure.trace else None,
        **_samples(times),
    }


def _samples(times: Timeline) -> dict[str, Any]:
    ranks = []
    for rank, row in enumerate(times.ranks):
        busy: dict[str, float] = {}
        for span in row:
            busy[span.action.kind] = busy.get(span.action.kind, 0.0) + span.end - span.start
        ranks.append(_rank(rank, [sum(busy.values())], {kind: [seconds] for kind, seconds in busy.items()}))
    timed = {"seconds": [times.makespan], "warmup": 0, "forward_backward_seconds": [times.makespan]}
    return {"iterations": timed, "ranks": ranks}


def _rank(rank: int, busy: list[float], by_action: dict[str, list[float]]) -> dict[str, Any]:
    coords = {"pipeline": rank, "data": 0, "tensor": 0}
    return {"rank": rank, "coords": coords, "busy_seconds": busy, "busy_by_action": by_action}


def _trace(times: Timeline) -> dict[str, Any]:
    spans = [
        {
            "rank": span.rank,
            "kind": span.action.kind,
            "stage": span.action.stage,
            "microbatch": span.action.microbatch,
            "replica": span.action.replica,
            "start": span.start,
            "end": span.end,
        }
        for row in times.ranks
        for span in row
    ]
    return {"iteration": 0, "spans": spans}
