"""Claims about the microbatch: figures 7, 8 and 16, and equation 1."""

import itertools
from collections.abc import Iterator, Mapping

from suite.report.claims.check import RELATIVE, Check, Computed, Finding, Seen, within
from suite.report.claims.curves import best_of, said
from suite.report.claims.evidence import PAPER_SCALE, Curves, Evidence, Lens, batch, listed, microbatch, pipeline
from suite.report.claims.listed import Claim


def _one_device(lens: Lens) -> dict[int, float]:
    return lens.curves("figure-7", lambda point: None, microbatch)[None]


def _gain_of_microbatch(claim: Claim, lens: Lens) -> Finding:
    rates, printed = (list(_one_device(one).values()) for one in (lens, lens.published))
    gain, said = max(rates) / rates[0], max(printed) / printed[0]
    return Finding(f"{gain:.2f} times", within(gain, said, 0.0 if lens.is_published else 0.15) and gain >= 1.3 - 0.05)


def _smaller_gains(claim: Claim, lens: Lens) -> Finding:
    rates = list(_one_device(lens).values())
    gains = [after / before for before, after in itertools.pairwise(rates)]
    return Finding(listed(gains, ".3f"), gains == sorted(gains, reverse=True))


def _equation_1(rates: Mapping[int, float], sequences: int, stages: int) -> dict[int, float]:
    """Throughput relative to microbatch 1 by equation 1: (B/b + p - 1) microbatches of a time of b / rate."""
    times = {b: (sequences / b + stages - 1) * b / rate for b, rate in rates.items()}
    return {b: times[1] / time for b, time in times.items()}


def _estimates(evidence: Evidence) -> dict[int, dict[int, float]]:
    """Figure 8 as printed, by batch and microbatch; and its number of stages."""
    found: dict[int, dict[int, float]] = {}
    for row in evidence.of_table("Figure 8", "normalized_throughput"):
        found.setdefault(row.global_batch or 0, {})[row.microbatch or 0] = row.value
    return found


def _stages(evidence: Evidence) -> int:
    return evidence.of_table("Figure 8", "normalized_throughput")[0].pp or 0


def _best_estimate(claim: Claim, lens: Lens) -> Finding:
    stages = _stages(lens.evidence)
    best = {size: best_of(_equation_1(_one_device(lens), size, stages)) for size in sorted(_estimates(lens.evidence))}
    text = ", ".join(f"b = {b} at B = {size}" for size, b in best.items())
    return Finding(text, set(best.values()) == {int(claim.after("b = "))})


def _estimates_recomputed(claim: Claim, evidence: Evidence) -> Finding:
    rates = _one_device(evidence.lens("published", PAPER_SCALE))
    apart = [
        abs(_equation_1(rates, size, _stages(evidence))[b] - value)
        for size, curve in _estimates(evidence).items()
        for b, value in curve.items()
    ]
    return Finding(f"{len(apart)} points, at most {max(apart):.3f} apart", max(apart) <= 0.015)


def _best_depends(claim: Claim, lens: Lens) -> Finding:
    best = {"one device": best_of(_one_device(lens))}
    best |= {f"p = 8, B = {size}": best_of(curve) for size, curve in _microbatches(lens).items()}
    return Finding(", ".join(f"{b} ({where})" for where, b in best.items()), len(set(best.values())) > 1)


def _microbatches(lens: Lens) -> Curves:
    return lens.curves("figure-16", batch, microbatch)


def _best_microbatch(claim: Claim, lens: Lens) -> Finding:
    best = {size: best_of(curve) for size, curve in _microbatches(lens).items()}
    text = ", ".join(f"b = {b} at B = {size}" for size, b in best.items())
    return Finding(text, set(best.values()) == {int(claim.after("model is "))})


def _equation_1_chooses(claim: Claim, lens: Lens) -> Finding:
    """Rates without their bubble, of one batch against the other's."""
    corrected: Curves = {}
    for point, rate in lens.values("figure-16"):
        bubble = (pipeline(point) - 1) * microbatch(point) / batch(point)
        corrected.setdefault(batch(point), {})[microbatch(point)] = rate * (1 + bubble)
    small, large = (dict(sorted(corrected[size].items())) for size in (min(corrected), max(corrected)))
    apart = max(abs(small[b] / large[b] - 1) for b in small)
    text = f"{listed(small.values(), '.4g')} against {listed(large.values(), '.4g')}"
    return Finding(f"{text}, at most {100 * apart:.1f} % apart", apart <= 0.02)


def _gain_of_choice(claim: Claim, lens: Lens) -> Finding:
    ratios = {size: max(curve.values()) / min(curve.values()) for size, curve in _microbatches(lens).items()}
    claimed = 1 + claim.number("%") / 100
    return Finding(f"best over worst {said(ratios)}", max(ratios.values()) >= claimed - RELATIVE)


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "AN-16", Seen(_best_depends)
    yield "F7-01", Seen(_gain_of_microbatch)
    yield "F7-02", Seen(_smaller_gains, anywhere=True)
    yield "F8-01", Seen(_best_estimate)
    yield "F8-02", Computed(_estimates_recomputed)
    yield "F16-01", Seen(_best_microbatch)
    yield "F16-02", Seen(_equation_1_chooses)
    yield "F16-03", Seen(_gain_of_choice)
