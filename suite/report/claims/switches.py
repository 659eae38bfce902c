"""Claims about what is switched on and off: interleaving, recomputation, scatter/gather, fused operators."""

from collections.abc import Iterator

from suite.experiment.point import Point
from suite.report.claims.check import RELATIVE, Check, Finding, Seen, within
from suite.report.claims.curves import both, constant, ratios_of, said
from suite.report.claims.evidence import Curves, Lens, MissingError, batch, listed, pipeline
from suite.report.claims.listed import Claim


def _interleaved(point: Point) -> bool:
    return point.schedule.name == "interleaved"


def _schedules(lens: Lens) -> Curves:
    return lens.curves("figure-12", _interleaved, batch)


def _interleaving_wins(claim: Claim, lens: Lens) -> Finding:
    ratios = ratios_of(_schedules(lens), "figure-12")
    return Finding(f"{sum(ratio > 1 for ratio in ratios.values())} of {len(ratios)}", min(ratios.values()) > 1)


def _lead_shrinks(claim: Claim, lens: Lens) -> Finding:
    without, with_ = both(_schedules(lens), "figure-12")
    leads = [with_[x] / without[x] - 1 for x in without]
    differences = [with_[x] - without[x] for x in without]
    told = listed((100 * lead for lead in leads), ".1f")
    return Finding(f"{told} % ({listed(differences)} TFLOP/s)", leads == sorted(leads, reverse=True))


def _more_than_ten_percent(claim: Claim, lens: Lens) -> Finding:
    """At more than half of the batches: the paper's other sections limit what its abstract says."""
    ratios = ratios_of(_schedules(lens), "figure-12")
    more = sum(ratio >= 1.095 for ratio in ratios.values())
    return Finding(f"{said(ratios)}; above 10 % at {more} of {len(ratios)}", 2 * more > len(ratios))


def _default_wins(claim: Claim, lens: Lens) -> Finding:
    default = both(_schedules(lens), "figure-12")[0]
    unoptimised = both(_scattered(lens), "figure-18")[0]
    largest = max(set(default) & set(unoptimised), default=None)
    if largest is None:
        raise MissingError("figures 12 and 18 have no batch in common")
    one, other = default[largest], unoptimised[largest]
    return Finding(f"{one:.4g} and {other:.4g} at B = {largest}", one > other)


def _bubble_of_default(claim: Claim, lens: Lens) -> Finding:
    default = {
        batch(point): rate * (1 + (pipeline(point) - 1) / point.microbatches)
        for point, rate in lens.values("figure-12")
        if not _interleaved(point)
    }
    return constant(dict(sorted(default.items())), 0.02)


def _recomputing(lens: Lens) -> Curves:
    return lens.curves("figure-17", lambda point: point.training.recompute == "full", batch, "sequences_per_s")


def _loss_of_recomputation(claim: Claim, lens: Lens) -> Finding:
    losses = {x: 1 - ratio for x, ratio in ratios_of(_recomputing(lens), "figure-17").items()}
    claimed = claim.number("%") / 100
    return Finding(f"{said(losses)}", within(max(losses.values()), claimed, 0.03))


def _gain_at_large_batches(claim: Claim, lens: Lens) -> Finding:
    """Of the batches that fit for certain: what the memory model leaves undecided may not have run."""
    best = {"none": 0.0, "full": 0.0}
    for sample in lens.samples("figure-17"):
        value, mode = sample.value("sequences_per_s"), sample.point.training.recompute
        if sample.trouble is None and value is not None and sample.memory.get("verdict") in (None, "fits"):
            best[mode] = max(best[mode], value)
    if not all(best.values()):
        raise MissingError("figure-17 has not both of its series")
    ratio = best["full"] / best["none"]
    return Finding(f"{ratio:.2f} times", within(ratio, 2.0, 0.05 if lens.is_published else 2 * RELATIVE))


def _bubble_of_recomputing(claim: Claim, lens: Lens) -> Finding:
    """From the second batch on: the first one's rate is rounded too far."""
    corrected = {
        batch(point): rate * (1 + (pipeline(point) - 1) / point.microbatches)
        for point, rate in lens.values("figure-17", "sequences_per_s")
        if point.training.recompute == "full"
    }
    return constant(dict(sorted(corrected.items())[1:]), 0.04)


def _scattered(lens: Lens) -> Curves:
    return lens.curves("figure-18", lambda point: point.parallel.scatter_gather, batch)


def _gain_of_scattering(claim: Claim, lens: Lens) -> Finding:
    ratios = ratios_of(_scattered(lens), "figure-18")
    claimed = 1 + claim.number("%") / 100
    return Finding(said(ratios), within(max(ratios.values()), claimed, 0.01 if lens.is_published else RELATIVE))


def _gain_grows(claim: Claim, lens: Lens) -> Finding:
    """By more than a point from the smallest batch to the largest."""
    ratios = ratios_of(_scattered(lens), "figure-18")
    first, *_, last = ratios.values()
    return Finding(said(ratios), last > first + 0.01)


def _fusing(lens: Lens) -> list[float]:
    """The gain of fused operators, the smaller model first."""
    curves = lens.curves("section-5.8", _size, lambda point: point.kernels != "reference")
    return [curve[True] / curve[False] for curve in curves.values() if len(curve) == 2]


def _size(point: Point) -> int:
    return point.model.layers * point.model.hidden_size**2


def _fused(number: int) -> Seen:
    def check(claim: Claim, lens: Lens) -> Finding:
        gains = _fusing(lens)
        if len(gains) != 2:
            raise MissingError("section-5.8 has not two models with and without fused operators")
        claimed = 1 + claim.number("%") / 100
        less = number == 0 or gains[1] < gains[0]
        return Finding(f"{gains[number]:.3f} times", within(gains[number], claimed, 0.05) and less)

    return Seen(check)


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "F12-01", Seen(_interleaving_wins, anywhere=True)
    yield "F12-02", Seen(_lead_shrinks, anywhere=True)
    yield "F12-03", Seen(_more_than_ten_percent)
    yield "F12-04", Seen(_default_wins)
    yield "F12-05", Seen(_bubble_of_default)
    yield "F17-01", Seen(_loss_of_recomputation)
    yield "F17-02", Seen(_gain_at_large_batches)
    yield "F17-04", Seen(_bubble_of_recomputing)
    yield "F18-01", Seen(_gain_of_scattering)
    yield "F18-02", Seen(_gain_grows)
    yield "OP-01", _fused(0)
    yield "OP-02", _fused(1)
