"""One rank of an emulated point: the iterations of a training rank with computation waited for instead of done."""

from typing import Any

import torch.distributed as dist

from suite.launch.job import Job, JobFolder
from suite.launch.samples import collect, rank_samples
from suite.measure.notes import Notes
from suite.parallel.topology import Topology
from suite.pipeline.lowering import Lowered
from suite.training.message_cost import message_cost
from suite.training.paced import PacedStep
from suite.training.step import IterationSamples

NO_PEAK = "emulated: the times of the actions are given, nothing is computed"


def emulate(job: Job, lowered: Lowered, topology: Topology, folder: JobFolder, notes: Notes) -> dict[str, Any] | None:
    """Run the point's iterations; rank 0 returns the fields of the record.

    Ranks that wait share cores without slowing each other down, so that an emulated point is never oversubscribed.
    """
    point = job.point
    step = PacedStep(point, lowered, topology, notes)
    cost = message_cost(step.transport)
    samples: list[IterationSamples] = []
    for iteration in range(point.measure.warmup + point.measure.iterations):
        if topology.world.size > 1:
            dist.barrier()
        samples.append(step.run(iteration))
        if topology.rank == 0:
            folder.note_iteration(iteration, samples[-1].seconds, None)
    notes.note_phase("gathering the samples")
    here = rank_samples(topology, step.transport, samples)
    result = collect(point, here, samples, topology.world, folder)
    if result is not None:
        del result["peaks"], result["breakdown_seconds"]  # no reduction and no update was run
        result["environment"] = {
            "device": "cpu",
            "backend": topology.backend,
            "cluster": point.cluster,
            "peak_reason": NO_PEAK,
        }
        result["oversubscribed"] = False
        result["preflight"] = None if cost is None else {"send_seconds": cost.send, "arrival_seconds": cost.arrival}
    return result
