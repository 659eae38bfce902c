"""What a paper's vertical axis shows, by the metric's name in published rows, computed from a point and its times."""

from collections.abc import Callable
from dataclasses import dataclass

from suite.experiment.point import Point
from suite.measure.flops import FLOPS_VERSION, counted_flops, model_flops
from suite.report.metrics import days_to_train

PER_RANK_FORMULA = (
    "96 B s l h² (1 + s/(6h) + V/(16 l h)) FLOPs per iteration with full recomputation (the paper's equation 3), "
    "72 B s l h² (1 + s/(6h) + V/(12 l h)) without; B sequences, s tokens each, l layers, h hidden size, "
    f"V the declared vocabulary; formulas of version {FLOPS_VERSION}"
)


@dataclass(frozen=True)
class Timed:
    """What a quantity is computed from: a point, the seconds of its iteration, its bubble, its peak per rank."""

    point: Point
    seconds: float
    bubble: float | None = None  # over the busiest rank's work
    peak: float | None = None  # FLOP/s of a rank


@dataclass(frozen=True)
class Quantity:
    """A metric: its name in rows, its axis and unit, and how it follows from a timed iteration.

    `small_units`: the unit of a small machine, a thousandth. `of_device`: it says something of a device, and so nothing
    where the times of the actions were given. `to_first`: relative to the first point of its series.
    """

    name: str
    title: str
    unit: str
    of: Callable[[Timed], float | None]
    formula: str
    small_unit: str | None = None
    of_device: bool = True
    to_first: bool = False


def _rate(timed: Timed) -> float:
    training = timed.point.training
    flops = counted_flops(timed.point.model, training.global_batch, training.recompute)
    return flops / timed.seconds / timed.point.parallel.ranks


def _sequences(timed: Timed) -> float:
    return timed.point.training.global_batch / timed.seconds


def _tokens(timed: Timed) -> float:
    return _sequences(timed) * timed.point.model.seq_length


def _mfu(timed: Timed) -> float | None:
    flops = model_flops(timed.point.model, timed.point.training.global_batch)
    return None if timed.peak is None else 100 * flops / timed.seconds / timed.point.parallel.ranks / timed.peak


_PER_RANK = f"FLOPs over time and ranks: {PER_RANK_FORMULA}"
_QUANTITIES = (
    Quantity(
        "tflops_per_gpu",
        "throughput per rank",
        "TFLOP/s",
        lambda timed: _rate(timed) / 1e12,
        _PER_RANK,
        small_unit="GFLOP/s",
    ),
    Quantity(
        "petaflops",
        "throughput of all ranks",
        "PFLOP/s",
        lambda timed: _rate(timed) * timed.point.parallel.ranks / 1e15,
        f"FLOPs over time: {PER_RANK_FORMULA}",
        small_unit="TFLOP/s",
    ),
    Quantity(
        "hfu",
        "share of peak",
        "%",
        lambda timed: None if timed.peak is None else 100 * _rate(timed) / timed.peak,
        f"FLOPs over time, ranks and peak: {PER_RANK_FORMULA}",
    ),
    Quantity("mfu", "share of peak, model FLOPs", "%", _mfu, "the model's FLOPs, none recomputed, over time and peak"),
    Quantity("iteration_time", "iteration time", "s", lambda timed: timed.seconds, "median iteration time"),
    Quantity("sequences_per_s", "throughput", "sequences/s", _sequences, "global batch over median iteration time"),
    Quantity(
        "samples_per_gpu_per_s",
        "throughput per rank",
        "sequences/s",
        lambda timed: _sequences(timed) / timed.point.parallel.ranks,
        "global batch over median iteration time and ranks",
    ),
    Quantity("tokens_per_s", "throughput", "tokens/s", _tokens, "tokens of the batch over median iteration time"),
    Quantity(
        "tokens_per_s_per_gpu",
        "throughput per rank",
        "tokens/s",
        lambda timed: _tokens(timed) / timed.point.parallel.ranks,
        "tokens of the batch over median iteration time and ranks",
    ),
    Quantity(
        "days_300b_tokens",
        "training time for 300 billion tokens",
        "days",
        lambda timed: days_to_train(_tokens(timed)),
        "300e9 tokens over tokens/s",
    ),
    Quantity(
        "bubble_over_ideal",
        "bubble over ideal time",
        "",
        lambda timed: timed.bubble,
        "(forward-backward time − busiest rank's work) / busiest rank's work",
        of_device=False,
    ),
    Quantity(
        "normalized_throughput",
        "throughput relative to the first point",
        "",
        _sequences,
        "sequences/s over those of the series' first point",
        of_device=False,
        to_first=True,
    ),
)
QUANTITIES = {quantity.name: quantity for quantity in _QUANTITIES}
