"""The loss on held-out tokens, through the pipeline's forwards only."""

import torch

from suite.pipeline.engine import Engine
from suite.pipeline.lowering import Lowered
from suite.pipeline.program import forward_only
from suite.pipeline.proof import prove
from suite.training.data import Batches
from suite.training.step import TrainingStep
from suite.training.worker import ModelWorker


def evaluate(step: TrainingStep, lowered: Lowered, batches: int) -> float:
    """The mean loss over the tokens of `batches` global batches; every rank calls this and gets the same number.

    `lowered` is the training program, whose forwards give the order.
    """
    program = prove(forward_only(lowered.schedule), forward_only=True).lowered
    topology, point = step.topology, step.point
    worker = ModelWorker(step.stages, program.schedule.virtual_stages - 1)
    engine = Engine(program, topology.pipeline.index, worker, step.transport, step.clock)
    held_out = Batches(point, topology.data.index, step.device, held_out=True)
    tokens = batches * point.training.global_batch * point.model.seq_length
    total = torch.zeros((), dtype=torch.float64, device=step.device)
    for batch in range(batches):
        microbatches = [held_out.microbatch(batch, i) for i in range(point.microbatches)]
        worker.begin(microbatches.__getitem__, 1.0 / tokens)
        with torch.no_grad():
            engine.run()
        if topology.tensor.index == 0:
            total += worker.total_loss.to(total)
    step.clock.seconds()  # evaluation is not timed
    return topology.world.all_reduce(total).item()
