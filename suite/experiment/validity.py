"""The rules that every point must meet. A violation is a sentence: field, value, rule and what would work."""

import re
from pathlib import Path

from suite.experiment.checkpoint_folder import other_model, whole_checkpoints
from suite.experiment.cluster import Cluster
from suite.experiment.errors import shown
from suite.experiment.kernel_choice import kernel_problems
from suite.experiment.megatron_file import megatron_problem
from suite.experiment.not_yet import not_yet
from suite.experiment.point import MOST_LAYERS, Checkpoint, Data, Model, Point
from suite.experiment.schedule_digest import schedule_digest
from suite.experiment.text import text_problem
from suite.experiment.tokenizer import tokenizer_problem
from suite.records.schema import Source

BYTE_VALUES = 256  # token values of a text read as bytes


def violations(point: Point, cluster: Cluster, source: Source = "measured") -> list[str]:
    """Why the point cannot run; empty for a valid point. `source` is what its records would be."""
    return [
        *_model(point),
        *_layout(point, cluster, source),
        *_batch_and_schedule(point),
        *_inputs(point),
        *kernel_problems(point, cluster, source),
        *not_yet(point),
    ]


def _model(point: Point) -> list[str]:
    found = []
    model, tensor = point.model, point.parallel.tensor
    if model.hidden_size % model.heads:
        works = nearest_divisor(model.hidden_size, model.heads)
        found.append(
            f"model.hidden_size={model.hidden_size}: it is not a multiple of model.heads={model.heads}; "
            f"model.heads={works} would work"
        )
    for name in ("heads", "ffn_hidden_size"):
        size = getattr(model, name)
        if size % tensor:
            works = nearest_divisor(size, tensor)
            found.append(
                f"parallel.tensor={tensor}: it does not divide model.{name}={size}; parallel.tensor={works} would work"
            )
    return found


def _layout(point: Point, cluster: Cluster, source: Source) -> list[str]:
    found = []
    parallel, layers, stages = point.parallel, point.model.layers, point.virtual_stages
    most = {"measured": cluster.max_ranks, "emulated": cluster.max_emulated_ranks}.get(source)
    if most is not None and parallel.ranks > most:
        fits = most // (parallel.tensor * parallel.pipeline)
        works = f"parallel.data={fits}" if fits else f"tensor * pipeline of at most {most}"
        found.append(
            f"parallel.data={parallel.data}: tensor {parallel.tensor} * pipeline {parallel.pipeline} * data "
            f"{parallel.data} is {parallel.ranks} ranks, more than the {most} of cluster {cluster.name}"
            f"{' in emulation' if source == 'emulated' else ''}; "
            f"{works} would work"
        )
    if layers < stages:
        works = f"model.layers={stages}" if stages <= MOST_LAYERS else f"pipeline * chunks of at most {layers}"
        found.append(
            f"model.layers={layers}: fewer than one layer for each of the {stages} virtual stages (pipeline "
            f"{parallel.pipeline} * chunks {point.schedule.chunks}); {works} would work"
        )
    split = point.schedule.split
    if split is not None and (len(split) != stages or sum(split) != layers):
        each, rest = divmod(layers, stages)
        works = "leaving it out"
        if each:
            works = f"schedule.split={shown([each + 1] * rest + [each] * (stages - rest))}"
        found.append(
            f"schedule.split={shown(split)}: it must have {stages} entries, one per virtual stage, that sum "
            f"to {layers} layers, and it has {len(split)} that sum to {sum(split):.15g}; {works} would work"
        )
    if len(set(parallel.order)) != len(parallel.order):
        found.append(
            f"parallel.order={shown(parallel.order)}: it must name each dimension once; "
            "parallel.order=[tensor, data, pipeline] would work"
        )
    if parallel.sharding == "zero3":
        for field, size in (
            ("parallel.tensor", parallel.tensor),
            ("parallel.pipeline", parallel.pipeline),
            ("schedule.chunks", point.schedule.chunks),
        ):
            if size != 1:
                found.append(
                    f"{field}={size}: parallel.sharding=zero3 is data parallelism without model parallelism; "
                    f"{field}=1 would work, or parallel.sharding=zero1"
                )
        if not parallel.overlap_reduction:
            found.append(
                "parallel.overlap_reduction=false: parallel.sharding=zero3 reduces a layer's gradients in its backward "
                "pass; parallel.overlap_reduction=true would work"
            )
    if parallel.sequence and point.model.seq_length % parallel.tensor:
        length, tensor = point.model.seq_length, parallel.tensor
        found.append(
            f"parallel.sequence=true: parallel.tensor={tensor} does not divide model.seq_length={length}; "
            f"model.seq_length={-(-length // tensor) * tensor} would work"
        )
    return found


def _batch_and_schedule(point: Point) -> list[str]:
    batch, data, microbatch = point.training.global_batch, point.parallel.data, point.training.microbatch
    per_step = data * microbatch
    if batch % per_step:
        works = max(1, round(batch / per_step)) * per_step
        return [
            f"training.global_batch={batch}: it is not a multiple of data {data} * microbatch {microbatch} = "
            f"{per_step}; training.global_batch={works} would work"
        ]
    if point.virtual_stages > MOST_LAYERS:
        return []  # no model has a layer for each, which is said already
    # Imported here: the schedule generators are not needed to read a file.
    from suite.pipeline.generators import why_not

    reason = why_not(point.schedule, stages=point.parallel.pipeline, microbatches=point.microbatches)
    if reason is None and point.schedule.name == "file":
        reason = _file_problem(point)
    return [] if reason is None else [reason]


def _file_problem(point: Point) -> str | None:
    """What a schedule from a file can have that the generated ones have not."""
    from suite.pipeline.generators import placement

    path, digest = point.schedule.file, point.schedule.digest
    assert path is not None
    now = schedule_digest(path)
    if digest is not None and digest != now:
        return f"schedule.digest={digest}: the file {path} has {now}; schedule.digest={now} would work"
    replicas = placement(point.schedule, point.parallel.pipeline)
    first, last = ({hosts[end] for hosts in replicas} for end in (0, -1))
    if len(replicas) > 1 and first != last and point.model.tied_embeddings:
        return (
            f"model.tied_embeddings=true: of the replicas in {path} first stages are on ranks {sorted(first)} and last "
            f"ones on {sorted(last)}, which would have to be the same; model.tied_embeddings=false would work"
        )
    return None


def _inputs(point: Point) -> list[str]:
    return [*_data(point), *_checkpoint(point.checkpoint, point.model)]


def _checkpoint(checkpoint: Checkpoint, model: Model) -> list[str]:
    found = []
    if checkpoint.load and checkpoint.path is None:
        found.append("checkpoint.load=true: there is no folder to load from; checkpoint.path=FOLDER would work")
    if checkpoint.load and checkpoint.path is not None:
        # There may be none yet: another point of the sweep may write it.
        for newest in whole_checkpoints(Path(checkpoint.path))[-1:]:
            found += other_model(newest, model)
    if checkpoint.load and checkpoint.weights is not None:
        found.append(
            f"checkpoint.weights={checkpoint.weights}: checkpoint.load=true would overwrite them; "
            "checkpoint.load=false would work"
        )
    if checkpoint.weights is not None and not (Path(checkpoint.weights) / "config.json").is_file():
        found.append(
            f"checkpoint.weights={checkpoint.weights}: there is no config.json of a GPT-2; "
            "a folder that save_pretrained wrote would work"
        )
    return found


def _data(point: Point) -> list[str]:
    found = []
    data, vocabulary = point.data, point.model.vocab_size
    if data.tokenizer is not None and data.source != "text":
        found.append(
            f"data.tokenizer={data.tokenizer}: data.source={data.source} is not text; data.tokenizer=null would work"
        )
    if data.tokenizer is None and data.source == "text" and vocabulary < BYTE_VALUES:
        found.append(
            f"model.vocab_size={vocabulary}: data.source=text reads bytes, which have {BYTE_VALUES} values; "
            f"model.vocab_size={BYTE_VALUES} would work"
        )
    if point.measure.evaluation and data.source != "synthetic" and data.validation is None:
        found.append(
            f"measure.evaluation={point.measure.evaluation}: there are no held-out tokens; data.validation=PATH would "
            "work, or measure.evaluation=0"
        )
    problems = [_tokens(point, data)]
    if data.validation is not None:
        held_out = _tokens(point, data.model_copy(update={"path": data.validation}))
        problems.append(held_out and re.sub(r"^data\.path", "data.validation", held_out))
    return [*found, *dict.fromkeys(filter(None, problems))]


def _tokens(point: Point, data: Data) -> str | None:
    """What is wrong with the files behind `data.path`."""
    seq_length = point.model.seq_length
    if data.source == "megatron":
        return megatron_problem(data.path, seq_length, point.training.seed)
    if data.source == "text" and data.tokenizer is not None:
        return tokenizer_problem(data.path, data.tokenizer, seq_length, point.model.vocab_size)
    return text_problem(data.path, seq_length) if data.source == "text" else None


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`; the smaller of two equally near ones."""
    for distance in range(min(wanted, 100_000)):
        for candidate in (wanted - distance, wanted + distance):
            if 0 < candidate <= number and number % candidate == 0:
                return candidate
    return 1
