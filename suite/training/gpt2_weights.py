"""Hugging Face GPT-2 weights into a training step of any layout, and out of it."""

from pathlib import Path

from suite.experiment.point import Model
from suite.model.hugging_face import read_gpt2, write_gpt2
from suite.parallel.whole import fill_parameters, gather_parameters
from suite.training.step import TrainingStep

_OF_TRAINING = {"name", "dropout"}  # what the checkpoint of another run says and this one may choose


def import_gpt2(folder: str | Path, step: TrainingStep) -> None:
    """Give the model a checkpoint's weights; every rank calls this and reads what it holds.

    The weights are rounded to the run's precision. A checkpoint of the suite made in fp32 carries all their bits to
    the master weights of a 16-bit run.

    Raises:
        ValueError: the checkpoint is missing, damaged, or of a model of another shape.
    """
    parameters = list(step.parameters())
    found, tensors = read_gpt2(folder, {parameter.spec.name for parameter in parameters})
    for field in Model.model_fields:
        theirs, ours = (str(getattr(model, field)).lower() for model in (found, step.point.model))
        if theirs != ours and field not in _OF_TRAINING:
            raise ValueError(
                f"model.{field}={ours}: the checkpoint in {folder} has {theirs}; model.{field}={theirs} would work"
            )
    fill_parameters(parameters, tensors, step.topology.tensor)
    for piece in step.optimizer.pieces:
        if piece.master is not piece.values:
            piece.master.copy_(piece.values)


def export_gpt2(folder: str | Path, step: TrainingStep) -> None:
    """Write the model as a checkpoint that transformers reads; every rank calls this, rank 0 writes."""
    tensors = gather_parameters(step.parameters(), step.topology)
    if tensors is not None:
        write_gpt2(folder, step.point.model, tensors)
