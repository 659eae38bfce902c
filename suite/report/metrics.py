"""The derived numbers of one record, recomputed from its raw samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from suite.experiment.point import Point
from suite.experiment.recorded import point_of
from suite.measure.flops import TRAINING_TOKENS, causal_model_flops, hardware_flops, model_flops
from suite.records.schema import Record
from suite.report.ideal import ideal, predicted_seconds, times_are_given

SECONDS_PER_DAY = 86400.0

_ROUNDING = 1e-9  # what sums of times leave of a bubble that is none
_MOST_NAMED = 10  # records that an error lists


class ImpossibleEfficiencyError(ValueError):
    """More than 100 % of peak: a clock, a peak or a formula is wrong, and nothing may be published."""


@dataclass(frozen=True)
class Metrics:
    """What one launch achieved. None wherever the record does not support the number.

    Percentages and bubbles are fractions here (0.42 is 42 %). FLOPs are per iteration, rates are totals
    over all ranks.
    """

    ranks: int
    microbatches: int
    tokens_per_iteration: int
    model_flops: int
    causal_model_flops: int
    hardware_flops: int
    iteration_seconds: float | None = None  # median of the kept iterations
    spread: float | None = None  # interquartile range of the kept iterations / median
    tokens_per_second: float | None = None
    model_flops_per_second: float | None = None
    causal_model_flops_per_second: float | None = None
    hardware_flops_per_second: float | None = None
    peak_flops_per_rank: float | None = None
    mfu: float | None = None  # model FLOP/s over the ranks' peak
    hfu: float | None = None  # hardware FLOP/s over the ranks' peak: the paper's percentage of peak
    days_to_train: float | None = None  # days for 300e9 tokens at this rate
    predicted_seconds: float | None = None  # of an emulated launch: the event simulation's
    ideal_bubble: float | None = None  # of the ideal computation time
    ideal_basis: str | None = None  # where the ideal bubble is from: a formula, or the event simulation
    ideal_note: str | None = None  # why the ideal bubble or the activations in flight are missing
    peak_activations: float | None = None  # the highest of any rank, in microbatches of a rank's whole share
    measured_bubble: float | None = None  # median of (forward-backward - busiest rank) / busiest rank
    bubble_fraction: float | None = None  # the measured bubble as part of the forward-backward time
    memory_bytes: int | None = None  # the highest peak of any rank
    first_loss: float | None = None
    final_loss: float | None = None
    note: str | None = None  # why the throughput or the efficiency is missing


def metrics(record: Record, point: Point | None = None) -> Metrics:
    """Computes every derived number of the record; `point` spares resolving it again.

    An oversubscribed launch has a throughput, which is what the machine did, but neither bubble nor
    percentages: its ranks waited for cores. A launch that is not ok has sizes and no numbers.

    Raises:
        ValidationError: the configuration cannot be read by this version.
    """
    point = point or point_of(record)
    at_best = ideal(point, times_are_given(record))
    return replace(
        achieved(record, point),
        ideal_bubble=at_best.bubble,
        ideal_basis=at_best.basis,
        ideal_note=at_best.reason,
        peak_activations=max(at_best.peaks) if at_best.peaks else None,
    )


def achieved(record: Record, point: Point) -> Metrics:
    """`metrics` without the ideal of the schedule, which takes a simulation."""
    batch, ranks = point.training.global_batch, point.parallel.ranks
    sizes = Metrics(
        ranks=ranks,
        microbatches=point.microbatches,
        tokens_per_iteration=batch * point.model.seq_length,
        model_flops=model_flops(point.model, batch),
        causal_model_flops=causal_model_flops(point.model, batch),
        hardware_flops=hardware_flops(point.model, batch, point.parallel.tensor, point.training.recompute),
    )
    if record.status != "ok":
        return replace(sizes, note=record.reason or record.status)
    kept = kept_seconds(record)
    if not kept:
        return replace(sizes, note="no iteration was timed")
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in kept):
        return replace(sizes, note="iteration times that are no positive numbers")
    return _rates(record, point, sizes, kept)


def _rates(record: Record, point: Point, sizes: Metrics, kept: Sequence[float]) -> Metrics:
    seconds = median(kept)
    tokens_per_second = sizes.tokens_per_iteration / seconds
    result = replace(
        sizes,
        iteration_seconds=seconds,
        predicted_seconds=predicted_seconds(point, record),
        spread=interquartile_range(kept) / seconds,
        tokens_per_second=tokens_per_second,
        model_flops_per_second=sizes.model_flops / seconds,
        causal_model_flops_per_second=sizes.causal_model_flops / seconds,
        hardware_flops_per_second=sizes.hardware_flops / seconds,
        days_to_train=days_to_train(tokens_per_second),
        memory_bytes=max(
            (rank.peak_memory_bytes for rank in record.ranks or [] if rank.peak_memory_bytes is not None),
            default=None,
        ),
        first_loss=_at(record, 0),
        final_loss=_at(record, -1),
    )
    if record.oversubscribed:
        return replace(result, note="oversubscribed")
    bubble = measured_bubble(record, point)
    result = replace(
        result,
        measured_bubble=bubble,
        bubble_fraction=None if bubble is None else bubble / (1 + bubble),
    )
    peak = record.environment.get("peak_flops_per_rank")
    if not peak:
        reason = record.environment.get("peak_reason") or "no peak is recorded"
        return replace(result, note=f"no percentage of peak: {reason}")
    return replace(
        result,
        peak_flops_per_rank=float(peak),
        mfu=sizes.model_flops / seconds / (sizes.ranks * peak),
        hfu=sizes.hardware_flops / seconds / (sizes.ranks * peak),
    )


def days_to_train(tokens_per_second: float) -> float:
    """Days for 300e9 tokens at this rate, T / (tokens/s) / 86400; the paper's section 5.1."""
    return TRAINING_TOKENS / tokens_per_second / SECONDS_PER_DAY


def kept_seconds(record: Record) -> list[float]:
    """The iteration times after warm-up, in seconds."""
    return record.iterations.seconds[record.iterations.warmup :] if record.iterations else []


def interquartile_range(values: Sequence[float]) -> float:
    """Third minus first quartile, linear between samples; 0 for a single value."""
    ordered = sorted(values)

    def quantile(part: float) -> float:
        position = part * (len(ordered) - 1)
        below = math.floor(position)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (position - below) * (ordered[above] - ordered[below])

    return quantile(0.75) - quantile(0.25)


def measured_bubble(record: Record, point: Point) -> float | None:
    """Time that the pipeline adds to its busiest rank's work, over that work: median of kept iterations.

    None where the samples do not cover every pipeline rank in every kept iteration.
    """
    terms = bubble_terms(record, point)
    if not terms:
        return None
    bubble = median((whole - busiest) / busiest for whole, busiest, _ in terms)
    return 0.0 if abs(bubble) < _ROUNDING else bubble


def bubble_terms(record: Record, point: Point) -> list[tuple[float, float, int]]:
    """Of every kept iteration: forward-backward seconds, the busiest rank's seconds, and that rank.

    Empty where the samples do not cover every pipeline rank in every kept iteration.
    """
    timed = record.iterations
    if timed is None or timed.forward_backward_seconds is None or not record.ranks:
        return []
    seen = {rank.coords.get("pipeline") for rank in record.ranks}
    lengths = {len(rank.busy_seconds) for rank in record.ranks} | {len(timed.forward_backward_seconds)}
    if seen != set(range(point.parallel.pipeline)) or lengths != {len(timed.seconds)}:
        return []
    terms = []
    for index in range(timed.warmup, len(timed.seconds)):
        busiest = max(record.ranks, key=lambda rank: rank.busy_seconds[index])
        if not busiest.busy_seconds[index] > 0:
            return []
        terms.append((timed.forward_backward_seconds[index], busiest.busy_seconds[index], busiest.rank))
    return terms


def check_efficiency(named: Sequence[tuple[str, Metrics]]) -> None:
    """Raises ImpossibleEfficiencyError that names the records above 100 % of peak and their numbers."""
    wrong = [
        f"{name}: HFU {100 * found.hfu:.1f} %, MFU {100 * found.mfu:.1f} %, "
        f"{found.hardware_flops_per_second:.4g} hardware FLOP/s on {found.ranks} ranks "
        f"of {found.peak_flops_per_rank:.4g} FLOP/s peak"
        for name, found in named
        if found.hfu is not None and found.mfu is not None and max(found.hfu, found.mfu) > 1
    ]
    if wrong:
        more = [f"and {len(wrong) - _MOST_NAMED} more"] if len(wrong) > _MOST_NAMED else []
        raise ImpossibleEfficiencyError(
            "more than 100 % of peak, so a time or a peak is wrong and nothing is reported:\n  "
            + "\n  ".join(wrong[:_MOST_NAMED] + more)
        )


def _at(record: Record, index: int) -> float | None:
    loss = record.iterations.loss if record.iterations else None
    return loss[index] if loss else None
