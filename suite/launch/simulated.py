"""The simulated backend: no processes, the event simulation of the very program that the engine would run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.experiment.cluster import Cluster
from suite.experiment.hardware import Hardware
from suite.experiment.pace import costs, network
from suite.experiment.point import Point
from suite.launch.job import Job, now
from suite.launch.sweep import Todo, Watcher, record_invalid
from suite.measure.flops import FLOPS_VERSION
from suite.measure.provenance import host_environment, revision
from suite.pipeline.generators import generate
from suite.pipeline.program import ScheduleError
from suite.pipeline.summary import predict
from suite.pipeline.timeline import Timeline
from suite.records.schema import Record
from suite.records.store import Store
from suite.simulate.iteration import estimate

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
                record = simulate(job, self.cluster(point.cluster).hardware)
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
            visible_devices=None,
        )


def simulate(job: Job, hardware: Hardware | None) -> Record:
    """One iteration of a point's program on a cluster's hardware; where it has none, at the times of the `pace`."""
    started, point = now(), job.point
    if hardware is not None:
        return _predict(job, hardware, started)
    try:
        schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
        times = predict(schedule, costs(point.pace), network(point)).times
    except ScheduleError as error:
        return job.record("failed", str(error), started, environment=host_environment())
    environment = {**host_environment(), "peak_reason": NO_PEAK, "cluster": point.cluster}
    fields = {"flops_version": FLOPS_VERSION, "oversubscribed": False, **_samples(times)}
    trace = _trace(times) if point.measure.trace else None
    return job.record("ok", None, started, environment=environment, trace=trace, **fields)


def _predict(job: Job, hardware: Hardware, started: str) -> Record:
    point, device = job.point, hardware.device
    environment = {**host_environment(), "device": device.name, "cluster": point.cluster}
    peak = device.peak.get(point.training.precision)
    if peak is None:
        reason = f"{device.name} has no {point.training.precision} peak; it has {', '.join(device.peak)}"
        return job.record("failed", reason, started, environment=environment)
    try:
        found = estimate(point, hardware)
    except ScheduleError as error:
        return job.record("failed", str(error), started, environment=environment)
    environment |= {"peak_flops_per_rank": peak, "peak_source": device.source}
    ranks = [
        {
            "rank": rank,
            "coords": {"pipeline": rank, "data": 0, "tensor": 0},
            "busy_seconds": [seconds],
            "busy_by_action": {},
        }
        for rank, seconds in enumerate(found.busy_seconds)
    ]
    timed = {"seconds": [found.seconds], "warmup": 0, "forward_backward_seconds": [found.forward_backward_seconds]}
    parts = {part: [seconds] for part, seconds in found.breakdown.items()}
    fields = {"iterations": timed, "ranks": ranks, "breakdown_seconds": parts, "oversubscribed": False}
    return job.record("ok", None, started, environment=environment, flops_version=FLOPS_VERSION, **fields)


def _samples(times: Timeline) -> dict[str, Any]:
    ranks = []
    for rank, row in enumerate(times.ranks):
        busy: dict[str, float] = {}
        for span in row:
            busy[span.action.kind] = busy.get(span.action.kind, 0.0) + span.end - span.start
        ranks.append(
            {
                "rank": rank,
                "coords": {"pipeline": rank, "data": 0, "tensor": 0},
                "busy_seconds": [sum(busy.values())],
                "busy_by_action": {kind: [seconds] for kind, seconds in busy.items()},
            }
        )
    timed = {"seconds": [times.makespan], "warmup": 0, "forward_backward_seconds": [times.makespan]}
    return {"iterations": timed, "ranks": ranks}


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
