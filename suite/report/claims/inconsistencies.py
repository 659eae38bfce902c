"""Where the paper disagrees with itself: the printed numbers that show it."""

from collections.abc import Collection, Iterator

from suite.measure.flops import TRAINING_TOKENS
from suite.report.claims.arithmetic import TOKENS_1T, exact_days, table_1, training_days
from suite.report.claims.check import Check, Inconsistency
from suite.report.claims.curves import ratios_of
from suite.report.claims.evidence import PAPER_SCALE, Curves, Evidence, Lens, batch, ranks, tensor
from suite.report.claims.listed import Claim


def _interleaving(claim: Claim, evidence: Evidence) -> str:
    curves = _published(evidence).curves("figure-12", lambda point: point.schedule.name == "interleaved", batch)
    return _between(ratios_of(curves, "figure-12").values())


def _layouts(claim: Claim, evidence: Evidence) -> str:
    curves: Curves = _published(evidence).curves("figure-13", batch, tensor)
    worst = max(max(curve.values()) / min(curve.values()) for curve in curves.values())
    return f"best over worst {worst:.2f}"


def _recomputation(claim: Claim, evidence: Evidence) -> str:
    curves = _published(evidence).curves(
        "figure-17", lambda point: point.training.recompute == "full", batch, "sequences_per_s"
    )
    return f"at most {100 * (1 - min(ratios_of(curves, 'figure-17').values())):.0f} %"


def _scattering(claim: Claim, evidence: Evidence) -> str:
    curves = _published(evidence).curves("figure-18", lambda point: point.parallel.scatter_gather, batch)
    return f"{_between(ratios_of(curves, 'figure-18').values())}, smallest to largest gain at any batch"


def _weak_scaling(claim: Claim, evidence: Evidence) -> str:
    rates = [sample.value("tflops_per_gpu") or 0.0 for sample in table_1(evidence)]
    return f"{rates[-1] / rates[0]:.2f} times the rate per GPU"


def _two_equations(claim: Claim, evidence: Evidence) -> str:
    (rate,) = evidence.of_table("Section 5.1", "tflops_per_gpu")
    total = 1e12 * rate.value * (rate.n_gpus or 1)
    largest = table_1(evidence)[-1]
    model = next(one.point for one in _published(evidence).samples("table-2") if one.point.model.layers == rate.layers)
    whole = 1e12 * (largest.value("tflops_per_gpu") or 0) * ranks(largest.point)
    sizes = (1e9 * (row.params_b or 0) for row in (rate, largest.published[0]))
    runs = zip((TRAINING_TOKENS, TOKENS_1T), sizes, (model, largest.point), (total, whole), strict=True)
    gpt3, trillion = ((training_days(t, size, x), exact_days(t, point, x)) for t, size, point, x in runs)
    return f"{gpt3[0]:.1f} and {trillion[0]:.1f} days by equation 4, {gpt3[1]:.1f} and {trillion[1]:.1f} by equation 3"


def _published(evidence: Evidence) -> Lens:
    return evidence.lens("published", PAPER_SCALE)


def _between(ratios: Collection[float]) -> str:
    return f"{100 * (min(ratios) - 1):.1f} % to {100 * (max(ratios) - 1):.1f} %"


def _in_words(claim: Claim, evidence: Evidence) -> str:
    return claim.value


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id; of slips in the text only words can be shown."""
    yield "IN-01", Inconsistency(_interleaving)
    yield "IN-02", Inconsistency(_layouts)
    yield "IN-03", Inconsistency(_recomputation)
    yield "IN-04", Inconsistency(_scattering)
    yield "IN-07", Inconsistency(_weak_scaling)
    yield "IN-09", Inconsistency(_two_equations)
    yield from ((name, Inconsistency(_in_words)) for name in ("IN-05", "IN-06", "IN-08", "IN-10"))
