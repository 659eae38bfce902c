"""Claims about what moves between ranks, by the bytes that measured ranks counted (the experiment section-5.9)."""

from collections.abc import Iterator
from math import isclose

from suite.experiment.pace import BYTES
from suite.model.split import layer_split
from suite.report.claims.check import Check, Finding, Seen
from suite.report.claims.evidence import Lens, MissingError, pipeline, tensor
from suite.report.claims.listed import Claim
from suite.report.paper.samples import Sample

_EXPERIMENT = "section-5.9"


def _counted(lens: Lens) -> dict[bool, tuple[Sample, dict[str, int]]]:
    """By scatter/gather: the sample, and the bytes of a rank of the first stage, which sends activations only."""
    if lens.is_published:
        raise MissingError("the paper printed no bytes")
    found = {}
    for sample in lens.samples(_EXPERIMENT):
        record = sample.row.best.record if sample.row else None
        ranks = [rank for rank in (record.ranks or [] if record else []) if rank.coords.get("pipeline") == 0]
        parallel = sample.point.parallel
        if ranks and ranks[0].bytes_by_link and parallel.pipeline > 1 < parallel.tensor:
            found[parallel.scatter_gather] = sample, ranks[0].bytes_by_link
    if not found:
        raise MissingError(f"no {lens.source} record of {_EXPERIMENT} has counted bytes; suite run {_EXPERIMENT}")
    return found


def _activation(sample: Sample) -> int:
    """Bytes of b s h elements, for every microbatch of an iteration."""
    point = sample.point
    elements = point.training.microbatch * point.model.seq_length * point.model.hidden_size
    return elements * BYTES[point.training.precision] * point.microbatches


def _plain(lens: Lens) -> tuple[Sample, dict[str, int]]:
    counted = _counted(lens)
    if False not in counted:
        raise MissingError(f"{_EXPERIMENT} has no {lens.source} record without scatter/gather")
    return counted[False]


def _per_layer(lens: Lens) -> float:
    """All-reduces of b s h elements per layer; the first stage has one more, of its embedding."""
    sample, sent = _plain(lens)
    layers = len(layer_split(sample.point.model, pipeline(sample.point), sample.point.schedule.split)[0]) / 2
    return (sent["tensor"] / _activation(sample) - 1) / layers


def _collectives(claim: Claim, lens: Lens) -> Finding:
    sample, _ = _plain(lens)
    again = 2 if sample.point.training.recompute == "full" else 0
    found = _per_layer(lens)
    text = f"{found:.4g} per layer" + (", of which full recomputation makes two" if again else "")
    return Finding(text, isclose(found, 4 + again))


def _volumes(claim: Claim, lens: Lens) -> Finding:
    sample, sent = _plain(lens)
    t = tensor(sample.point)
    boundary = sent["pipeline"] / _activation(sample)
    again = 2 if sample.point.training.recompute == "full" else 0
    ring = (_per_layer(lens) - again) * 2 * (t - 1) / t
    text = f"{boundary:.4g} b s h over the boundary; {ring:.4g} b s h per layer at t = {t} by a ring"
    return Finding(text, isclose(boundary, 1) and isclose(ring, 8 * (t - 1) / t))


def _scattered(claim: Claim, lens: Lens) -> Finding:
    counted = _counted(lens)
    if set(counted) != {False, True}:
        raise MissingError(f"{_EXPERIMENT} has not both with and without scatter/gather")
    part = counted[True][1]["pipeline"] / counted[False][1]["pipeline"]
    t = tensor(counted[True][0].point)
    return Finding(f"{part:.4g} of the bytes at t = {t}, p = {pipeline(counted[True][0].point)}", isclose(part, 1 / t))


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "AN-08", Seen(_collectives, anywhere=True)
    yield "AN-09", Seen(_volumes, anywhere=True)
    yield "AN-18", Seen(_scattered, anywhere=True)
