"""Builds points and their training step in a test, on one process or on ranks."""

from typing import Any

import torch
from ranks import run_ranks

import suite.parallel.fully_sharded  # noqa: F401 - takes seconds, here once instead of in every rank
from suite.experiment.point import Point
from suite.parallel.topology import build_topology
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.training.step import TrainingStep

MODEL = {
    "layers": 4,
    "hidden_size": 16,
    "heads": 4,
    "vocab_size": 67,
    "seq_length": 12,
    "dropout": 0.1,
}


def point(
    layout: tuple[int, int, int] = (1, 1, 1),
    schedule: Any = "1f1b",
    batch: int = 8,
    microbatch: int = 1,
    **sections: Any,
) -> Point:
    """A small point in fp64 with SGD and no clipping; `sections` are merged over it."""
    tensor, pipeline, data = layout
    base: dict[str, Any] = {
        "model": MODEL,
        "parallel": {"tensor": tensor, "pipeline": pipeline, "data": data},
        "schedule": schedule,
        "training": {
            "global_batch": batch,
            "microbatch": microbatch,
            "precision": "fp64",
            "optimizer": "sgd",
            "gradient_clip": 0,
            "learning_rate": 0.1,
        },
    }
    for name, fields in sections.items():
        base[name] = {**base.get(name, {}), **fields}
    return Point.model_validate(base)


def training_step(at: Point) -> TrainingStep:
    """This rank's training step, inside an initialised process group where there are several ranks."""
    schedule = generate(at.schedule, at.parallel.pipeline, at.microbatches)
    lowered = prove(schedule).lowered
    topology = build_topology(at.parallel, "cpu", schedule.placement)
    return TrainingStep(at, lowered, topology, torch.device("cpu"))


def gradients_here(at: Point) -> dict[str, Any]:
    """Loss, norm, executed order, and this rank's gradients with where they belong."""
    step = training_step(at)
    loss, norm = step.gradients(0)
    for flat in (flat for flat in step.flats if flat.sharded and step.buffers):
        for bucket, piece in zip(flat.buckets, flat.owned, strict=True):
            flat.gradients[bucket.place] = flat.group.all_gather(flat.gradients[piece])
    return {
        "loss": loss,
        "norm": norm,
        "coords": step.topology.coords,
        "optimizer_bytes": sum(tensor.nbytes for tensor in step.optimizer.state),
        "pipeline_bytes": step.transport.bytes_sent,
        "memory": _shared(step),
        "data_bytes": step.topology.data.traffic.bytes,
        "reductions": [reduction.start for reduction in step.reducer.reductions],
        "last_action": step.clock.seconds()[step.engine.executed[-1].end],
        "executed": [ran.action for ran in step.engine.executed],
        "gradients": [(p.spec, p.shared, g.div(step.loss_scale.value).numpy()) for p, g in whole_gradients(step)],
    }


def _shared(step: TrainingStep) -> set[str]:
    """What goes through memory that ranks of one host share."""
    shared = {name for name in step.topology.coords if getattr(step.topology, name).memory is not None}
    return shared | ({"messages"} if step.transport.streams is not None else set())


def whole_gradients(step: TrainingStep) -> list[tuple[Any, torch.Tensor]]:
    """This rank's parameters with their gradients; those that ZeRO-3 splits are put together."""
    if step.buffers:
        return [(p, p.main_grad) for p in step.parameters()]
    sharded = zip(step.flats, step.stages[0, 0].parameters(), strict=True)
    return [(flat, parameter.grad.full_tensor()) for flat, parameter in sharded]


def gradients(at: Point) -> dict[str, Any]:
    """The whole model's gradients by name, put together from every rank's shards, with loss and norm.

    A parameter that several ranks hold whole must have the same gradient on all of them.
    """
    return _whole(run_ranks(at.parallel.ranks, gradients_here, at))


def gradients_of_all(points: list[Point]) -> list[dict[str, Any]]:
    """`gradients` of several points with the same number of ranks, on the same processes."""
    results = run_ranks(points[0].parallel.ranks, _gradients_of_all_here, points, timeout=300)
    return [_whole(list(of_point)) for of_point in zip(*results, strict=True)]


def _gradients_of_all_here(points: list[Point]) -> list[dict[str, Any]]:
    return [gradients_here(at) for at in points]


def _whole(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters put together from every rank's results."""
    shards: dict[str, dict[int, torch.Tensor]] = {}
    specs = {}
    for result in results:
        index = result["coords"]["tensor"]
        for spec, _shared, array in result["gradients"]:
            gradient = torch.from_numpy(array)
            specs[spec.name] = spec
            known = shards.setdefault(spec.name, {}).setdefault(index, gradient)
            torch.testing.assert_close(gradient, known, rtol=0, atol=1e-13)
    whole = {}
    for name, parts in shards.items():
        spec = specs[name]
        ordered = [parts[index] for index in sorted(parts)]
        if spec.shard is None:
            for part in ordered:
                torch.testing.assert_close(part, ordered[0], rtol=0, atol=1e-13)
            whole[name] = ordered[0]
        else:
            whole[name] = torch.cat(ordered, dim=spec.shard)[: spec.shape[0]]
    losses = {result["loss"] for result in results}
    norms = {result["norm"] for result in results}
    assert len(losses) == 1
    assert len(norms) == 1
    return {"loss": losses.pop(), "norm": norms.pop(), "gradients": whole, "ranks": results}
