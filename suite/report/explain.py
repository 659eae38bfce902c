"""One record explained: every number with the formula and the values it was computed from."""

import json
from collections.abc import Iterator

from suite.experiment.point import Point
from suite.experiment.recorded import point_of
from suite.measure.flops import (
    FLOPS_VERSION,
    attention_core_flops,
    layers_flops,
    logits_flops,
    padded_vocab,
    paper_flops,
    parameters,
)
from suite.records.schema import Record
from suite.records.store import StoredRecord
from suite.report.ideal import FORMULA, GIVEN_TIMES, PACED, ideal, times_are_given
from suite.report.metrics import Metrics, bubble_terms, check_efficiency, kept_seconds, metrics
from suite.report.numbers import memory, percent


def explain(record: Record) -> str:
    """The record's configuration, FLOPs, peak and time, so that each number can be redone by hand.

    Raises:
        ValidationError: the configuration cannot be read by this version.
        ImpossibleEfficiencyError: the record claims more than 100 % of peak.
    """
    point = point_of(record)
    found = metrics(record, point)
    name = record.file if isinstance(record, StoredRecord) else record.point_id
    check_efficiency([(name, found)])
    sections = [_what(record, point, name), _flops(point, found), _time(record, found)]
    if found.iteration_seconds is not None:
        sections += [_rates(record, found), _peak(record, point, found), _bubble(record, point, found)]
    return "\n\n".join("\n".join(section) for section in sections)


def _what(record: Record, point: Point, name: str) -> Iterator[str]:
    yield f"point {record.point_id} of {record.experiment} ({record.scale} scale), {record.source}"
    yield f"  file      {name}"
    yield f"  status    {record.status}" + (f": {record.reason}" if record.reason else "")
    yield f"  layout    {point.layout} = (tensor, pipeline, data), {point.parallel.ranks} ranks"
    for section, fields in point.model_dump(mode="json").items():
        text = fields if isinstance(fields, str) else json.dumps(fields)
        yield f"  {section:<9} {text}"


def _flops(point: Point, found: Metrics) -> Iterator[str]:
    model, batch, recompute = point.model, point.training.global_batch, point.training.recompute
    h, f, layers, s = model.hidden_size, model.ffn_hidden_size, model.layers, model.seq_length
    vocab, padded = model.vocab_size, padded_vocab(model.vocab_size, point.parallel.tensor)
    logits, executed = logits_flops(model, batch, vocab), logits_flops(model, batch, padded)
    forward = layers_flops(model, batch)
    again = {
        "none": "0 (no recomputation)",
        "selective": f"4 B s^2 h l = {attention_core_flops(model, batch)} (attention cores once more)",
        "full": f"{forward} (one more forward pass of the layers)",
    }[recompute]
    yield f"FLOPs per iteration, formula version {FLOPS_VERSION}"
    yield f"  B={batch} s={s} l={layers} h={h} f={f} V={vocab}, {parameters(model)} parameters"
    yield "  layers forward    B s l (8 h^2 + 4 h f + 4 s h)"
    yield f"                    = {batch}*{s}*{layers}*(8*{h}^2 + 4*{h}*{f} + 4*{s}*{h}) = {forward}"
    yield f"  logits forward    2 B s h V = 2*{batch}*{s}*{h}*{vocab} = {logits}"
    yield f"  logits executed   V padded to a multiple of 128*t is {padded}: {executed}"
    yield f"  recomputation     {again}"
    yield f"  model             3*({forward} + {logits}) = {found.model_flops}"
    yield f"  causal model      model - 3*(4 B s^2 h l)/2 = {found.causal_model_flops}"
    yield f"  hardware          3*({forward} + {executed}) + recomputation = {found.hardware_flops}"
    if recompute == "full" and f == 4 * h:
        yield f"  paper's eq. 3     96 B s l h^2 (1 + s/(6h) + V/(16 l h)) = {paper_flops(model, batch)}"


def _time(record: Record, found: Metrics) -> Iterator[str]:
    yield "time"
    if found.iteration_seconds is None:
        yield f"  none: {found.note}"
        return
    warmup = record.iterations.warmup if record.iterations else 0
    kept = kept_seconds(record)
    yield f"  kept iterations   {len(kept)} after {warmup} of warm-up, seconds: {' '.join(map(repr, kept))}"
    spread = percent(None if found.spread is None else 100 * found.spread)
    yield f"  median            {found.iteration_seconds!r} s, interquartile range {spread} of it"


def _rates(record: Record, found: Metrics) -> Iterator[str]:
    seconds = found.iteration_seconds
    yield "rates"
    tokens = found.tokens_per_iteration
    yield f"  tokens/s          B s / median = {tokens}/{seconds!r} = {found.tokens_per_second!r}"
    if times_are_given(record):
        yield f"  {record.source:<17} {GIVEN_TIMES[record.source]}"
    yield f"  300e9 tokens      {found.days_to_train!r} days = 300e9/(tokens/s)/86400"
    named = (
        ("hardware", found.hardware_flops, found.hardware_flops_per_second),
        ("model", found.model_flops, found.model_flops_per_second),
        ("causal model", found.causal_model_flops, found.causal_model_flops_per_second),
    )
    for name, flops, rate in named:
        if rate is not None:
            yield (
                f"  {name:<17} {flops}/{seconds!r} = {rate:.6g} FLOP/s = {rate / 1e15:.6g} petaFLOP/s; "
                f"{rate / 1e12 / found.ranks:.6g} TFLOP/s on each of {found.ranks} ranks"
            )


def _peak(record: Record, point: Point, found: Metrics) -> Iterator[str]:
    yield "percentage of peak"
    peak = found.peak_flops_per_rank
    if peak is None or found.hfu is None or found.mfu is None:
        yield f"  none: {found.note}"
        return
    source = record.environment.get("peak_source") or "source not recorded"
    yield f"  peak              {peak:.6g} FLOP/s per rank, {point.training.precision}, dense: {source}"
    yield (
        f"  HFU               {found.hardware_flops_per_second:.6g}/({found.ranks}*{peak:.6g}) "
        f"= {100 * found.hfu:.4g} %, the paper's percentage of peak"
    )
    yield (
        f"  MFU               {found.model_flops_per_second:.6g}/({found.ranks}*{peak:.6g}) = {100 * found.mfu:.4g} %"
    )


def _ideal(record: Record, point: Point) -> Iterator[str]:
    """The ideal bubble and the activations in flight, with what they are made of."""
    p, v, m = point.parallel.pipeline, point.schedule.chunks, point.microbatches
    at_best = ideal(point, times_are_given(record))
    if at_best.basis == FORMULA and at_best.bubble is not None:
        yield f"  ideal             (p-1)/(v m) = ({p}-1)/({v}*{m}) = {100 * at_best.bubble:.4g} %"
    elif at_best.bubble is not None:
        pace = point.pace
        times = f"F={pace.forward!r} B={pace.input_gradient!r} W={pace.weight_gradient!r} s"
        given = times if at_best.basis == PACED else "F=B=W=1"
        what = f"event simulation of {point.schedule_label}, p={p}, m={m}, with {given}"
        yield f"  ideal             {what} and no messages:"
        yield (
            f"                    (makespan-W)/W = ({at_best.makespan!r}-{at_best.work!r})/{at_best.work!r} "
            f"= {100 * at_best.bubble:.4g} %; W is the busiest rank's time"
        )
    if at_best.peaks:
        by_rank = " ".join(f"{peak:.4g}" for peak in at_best.peaks)
        yield f"  in flight         {max(at_best.peaks):.4g} microbatches of a rank's share at most, by rank: {by_rank}"
    if at_best.reason:
        yield f"  {at_best.reason}"


def _bubble(record: Record, point: Point, found: Metrics) -> Iterator[str]:
    yield "bubble and memory"
    yield from _ideal(record, point)
    if found.measured_bubble is not None:
        yield (
            f"  {record.source:<17} median of (forward-backward - W)/W = {100 * found.measured_bubble:.4g} %; "
            "W is the busiest rank's seconds"
        )
        warmup = record.iterations.warmup if record.iterations else 0
        for number, (whole, busiest, rank) in enumerate(bubble_terms(record, point), warmup + 1):
            bubble = 100 * (whole - busiest) / busiest
            yield f"    iteration {number:<5} ({whole!r}-{busiest!r})/{busiest!r} = {bubble:.4g} %, W of rank {rank}"
    else:
        why = "oversubscribed" if record.oversubscribed else "the samples do not cover every pipeline rank"
        yield f"  {record.source:<17} none: {why}"
    peaks = [(one.rank, one.peak_memory_bytes) for one in record.ranks or [] if one.peak_memory_bytes is not None]
    if not peaks:
        yield "  highest peak      none: no rank's memory is recorded"
        return
    highest, size = max(peaks, key=lambda pair: pair[1])
    yield f"  highest peak      {memory(size)} on rank {highest}, of all ranks:"
    for number, size in peaks:
        yield f"    rank {number:<10} {size} bytes = {memory(size)}"
