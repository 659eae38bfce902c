"""Claims about tables 1 and 2: rates, shares of peak, the lead over ZeRO-3, what fits into memory."""

from collections.abc import Iterator

from suite.experiment.point import Point
from suite.measure.peaks import find_peak
from suite.report.claims.check import RELATIVE, Check, Finding, Seen, within
from suite.report.claims.evidence import Curves, Lens, MissingError, batch, listed, microbatch, pipeline, ranks, tensor
from suite.report.claims.listed import Claim
from suite.report.paper.samples import Sample

_DEVICE = "A100-SXM4-80GB"  # of the paper's cluster


def _weak_scaling(lens: Lens, metric: str = "tflops_per_gpu") -> list[tuple[Point, float]]:
    return sorted(lens.values("table-1", metric), key=lambda pair: ranks(pair[0]))


def _shares(lens: Lens) -> list[float]:
    """Percent of the device's peak, smallest model first."""
    peak = find_peak(_DEVICE, "fp16")[0]
    assert peak is not None, "the table of peaks has the paper's device"
    return [100 * rate * 1e12 / peak.flops_per_device for _, rate in _weak_scaling(lens)]


def _largest_total(claim: Claim, lens: Lens) -> Finding:
    point, rate = _weak_scaling(lens)[-1]
    total = rate * ranks(point) / 1000
    printed = _weak_scaling(lens.published, "petaflops")[-1][1]
    rounding = 0.5 * ranks(point) / 1000 if lens.is_published else RELATIVE * printed
    return Finding(f"{total:.1f} PFLOP/s", within(total, printed, rounding))


def _share_of_peak(claim: Claim, lens: Lens) -> Finding:
    shares, printed = _shares(lens), [share for _, share in _weak_scaling(lens.published, "hfu")]
    ends = ((shares[-1], printed[-1]), (shares[0], printed[0]))
    holds = all(within(share, said, 0.5 if lens.is_published else RELATIVE * said) for share, said in ends)
    return Finding(f"{shares[-1]:.1f} % and {shares[0]:.1f} %", holds)


def _better_than_linear(claim: Claim, lens: Lens) -> Finding:
    rates = [rate for _, rate in _weak_scaling(lens)]
    return Finding(f"{rates[-1]:.4g} over {rates[0]:.4g} is {rates[-1] / rates[0]:.2f}", rates[-1] > rates[0])


def _lowest_share(claim: Claim, lens: Lens) -> Finding:
    lowest = min(_shares(lens))
    return Finding(f"{lowest:.1f} % at least", lowest >= claim.number("%") - 0.5)


def _against_zero3(lens: Lens, metric: str = "tflops_per_gpu") -> tuple[list[dict[int, float]], list[dict[int, float]]]:
    """The values of ZeRO-3 and of PTD-P by ranks, the smaller model first; where the paper has one, too."""
    printed = _by_scheme(lens.published, metric)
    curves = {
        scheme: {n: value for n, value in curve.items() if n in printed.get(scheme, {})}
        for scheme, curve in _by_scheme(lens, metric).items()
    }
    zero3 = [curve for (sharded, _), curve in curves.items() if sharded]
    ours = [curve for (sharded, _), curve in curves.items() if not sharded]
    if {len(curve) for curve in (*zero3, *ours)} != {3} or len(zero3) != 2 or len(ours) != 2:
        raise MissingError("table-2 has not two models on three numbers of GPUs with and without ZeRO-3")
    return zero3, ours


def _by_scheme(lens: Lens, metric: str) -> Curves:
    return lens.curves("table-2", lambda point: (point.parallel.sharding == "zero3", point.model.layers), ranks, metric)


def _lead(number: int) -> Seen:
    """The rate of PTD-P over that of ZeRO-3 on the fewest GPUs, of the smaller model (0) or the larger (1)."""

    def check(claim: Claim, lens: Lens) -> Finding:
        zero3, ours = _against_zero3(lens)
        ratio = next(iter(ours[number].values())) / next(iter(zero3[number].values()))
        claimed = 1 + claim.number("%") / 100
        return Finding(f"{ratio:.3f} times", within(ratio, claimed, 0.01 if lens.is_published else RELATIVE))

    return Seen(check)


def _lead_after_doubling(claim: Claim, lens: Lens) -> Finding:
    zero3, ours = _against_zero3(lens)
    ratios = [list(own.values())[1] / list(other.values())[1] for own, other in zip(ours, zero3, strict=True)]
    claimed = 1 + claim.number("%") / 100
    tolerance = 0.02 if lens.is_published else 0.1
    return Finding(f"{listed(ratios)} times", all(within(ratio, claimed, tolerance) for ratio in ratios))


def _kept(claim: Claim, lens: Lens) -> Finding:
    """What is left of the rate on the most GPUs; steep is below a half, a little is above three quarters."""
    zero3, ours = (
        [list(curve.values())[-1] / next(iter(curve.values())) for curve in curves] for curves in _against_zero3(lens)
    )
    steep = max(zero3) < 0.5 and min(ours) > 0.75 and max(ours) < 1
    return Finding(f"ZeRO-3 keeps {listed(zero3)}, PTD-P {listed(ours)}", steep)


def _days(claim: Claim, lens: Lens) -> Finding:
    """A gain of less than the tolerance is none: a day as printed, or five percent."""
    (smaller, larger), _ = _against_zero3(lens, "days_300b_tokens")
    (_, before, after), (_, middle, last) = (list(curve.values()) for curve in (smaller, larger))
    tolerance = 1.0 if lens.is_published else RELATIVE * before
    return Finding(
        f"{before:.0f} and {after:.0f} days; {middle:.0f} and {last:.0f} days",
        after > before - tolerance and last > middle,
    )


def _memory(sample: Sample) -> str:
    found = sample.memory
    if not found:
        raise MissingError("the record predicts no memory")
    gib = found.get("predicted_bytes", 0) / 2**30
    return f"{found.get('verdict')} with {gib:.1f} GiB"


def _sharded_memory(claim: Claim, lens: Lens) -> Finding:
    """The two sizes of the claim at its microbatch. Within the stated margin the prediction decides nothing."""
    size, fewest, most = (int(number) for number in (4, claim.number("GPUs"), claim.after("fits on")))
    found = {
        ranks(sample.point): sample
        for sample in lens.samples("table-2")
        if sample.point.parallel.sharding == "zero3" and microbatch(sample.point) == size
    }
    if lens.is_published:
        return Finding(f"{', '.join(map(str, found))} GPUs have a rate at microbatch {size}", None)
    if fewest not in found or most not in found:
        raise MissingError(f"table-2 has no ZeRO-3 point at microbatch {size} on {fewest} or on {most} GPUs")
    verdicts = [found[n].memory.get("verdict") for n in (fewest, most)]
    text = f"{_memory(found[fewest])} on {fewest}, {_memory(found[most])} on {most} GPUs"
    if verdicts == ["does not fit", "fits"]:
        return Finding(text, True)
    contradicted = verdicts[0] == "fits" or verdicts[1] == "does not fit"
    return Finding(f"{text}; undecided is within the model's stated margin", False if contradicted else None)


def _inside_a_node(claim: Claim, lens: Lens) -> Finding:
    """The largest model of table 1 without pipeline parallelism."""
    alone = [sample for sample in lens.samples("table-1") if pipeline(sample.point) == 1]
    largest = max(alone, key=lambda sample: sample.point.model.layers * sample.point.model.hidden_size**2)
    name, size = largest.point.model.name, tensor(largest.point)
    if lens.is_published:
        return Finding(f"{name} ran at t = {size}, p = 1", True)
    return Finding(f"{name} at t = {size}, p = 1: {_memory(largest)}", largest.memory.get("verdict") == "fits")


def _largest_without_recomputation(claim: Claim, lens: Lens) -> Finding:
    """The largest batches with a value, against the published ones; undecided points may be either."""
    found: dict[str, dict[int, Sample]] = {"none": {}, "full": {}}
    for sample in lens.samples("figure-17"):
        found[sample.point.training.recompute][batch(sample.point)] = sample
    if lens.is_published:
        most = {mode: max(samples) for mode, samples in found.items()}
        return Finding(f"{most['none']} without, {most['full']} with", most["none"] < most["full"])
    ran = {
        mode: max(batch(one.point) for one in lens.published.samples("figure-17") if _mode(one) == mode)
        for mode in found
    }
    said = {mode: {b: one.memory.get("verdict") for b, one in samples.items()} for mode, samples in found.items()}
    if None in {verdict for verdicts in said.values() for verdict in verdicts.values()}:
        raise MissingError("a record of figure-17 predicts no memory")
    largest = {
        mode: max((b for b, verdict in verdicts.items() if verdict == "fits"), default=0)
        for mode, verdicts in said.items()
    }
    open_ = sorted(b for b, verdict in said["none"].items() if verdict == "undecided")
    contradicted = any(
        verdict == ("does not fit" if b <= ran[mode] else "fits")
        for mode, verdicts in said.items()
        for b, verdict in verdicts.items()
    )
    text = f"largest that fits: {largest['none']} without, {largest['full']} with"
    return Finding(text + (f"; undecided without at {listed(open_, 'd')}" if open_ else ""), not contradicted)


def _mode(sample: Sample) -> str:
    return sample.point.training.recompute


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "T1-01", Seen(_largest_total)
    yield "T1-02", Seen(_share_of_peak)
    yield "T1-03", Seen(_better_than_linear)
    yield "T1-04", Seen(_lowest_share)
    yield "T2-01", _lead(0)
    yield "T2-02", _lead(1)
    yield "T2-03", Seen(_lead_after_doubling)
    yield "T2-04", Seen(_kept)
    yield "T2-06", Seen(_days)
    yield "T2-07", Seen(_sharded_memory)
    yield "LM-01", Seen(_inside_a_node)
    yield "F17-03", Seen(_largest_without_recomputation)
