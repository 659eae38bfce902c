"""Claims about schedules: bubbles, activations in flight, messages; by the generators and the event simulation."""

from collections.abc import Iterator
from math import isclose

from suite.experiment.point import Schedule
from suite.pipeline.generators import generate
from suite.pipeline.summary import Predicted, predict
from suite.pipeline.timeline import Costs, Network
from suite.report.claims.check import Check, Computed, Finding, Seen, within
from suite.report.claims.evidence import Evidence, Lens, batch, listed, pipeline
from suite.report.claims.listed import Claim

_SIZES = ((4, 8), (8, 16), (12, 12), (8, 64), (16, 4))  # stages, microbatches


def _ran(name: str, stages: int, microbatches: int, chunks: int = 1) -> Predicted:
    schedule = generate(Schedule.model_validate({"name": name, "chunks": chunks}), stages, microbatches)
    return predict(schedule, Costs(), Network())


def _bubbles(claim: Claim, evidence: Evidence) -> Finding:
    close = [
        isclose(_ran(name, p, m).times.bubble_over_ideal, (p - 1) / m) for name in ("gpipe", "1f1b") for p, m in _SIZES
    ]
    return Finding(f"(p-1)/m in {sum(close)} of {len(close)} simulations", all(close))


def _interleaved_bubbles(claim: Claim, evidence: Evidence) -> Finding:
    close = [
        isclose(_ran("interleaved", p, m, v).times.bubble_over_ideal, (p - 1) / (v * m))
        for p, m in _SIZES
        if m % p == 0
        for v in (2, 4)
    ]
    return Finding(f"(p-1)/(v m) in {sum(close)} of {len(close)} simulations where p divides m", all(close))


def _in_flight(claim: Claim, evidence: Evidence) -> Finding:
    exact = []
    for p, m in _SIZES:
        exact.append(_ran("1f1b", p, m).proof.peak_activations[0] == min(p, m))
        exact.append(_ran("gpipe", p, m).proof.peak_activations[0] == m)
    return Finding(f"min(p, m) and m on the first stage in {sum(exact)} of {len(exact)} programs", all(exact))


def _messages(claim: Claim, evidence: Evidence) -> Finding:
    """Messages of one microbatch and direction: boundaries between devices."""
    told, holds = [], True
    for p, m, v in ((4, 8, 2), (8, 16, 4)):
        plain = len(_ran("1f1b", p, m).times.transfers) / (2 * m)
        chunked = len(_ran("interleaved", p, m, v).times.transfers) / (2 * m)
        holds = holds and plain == p - 1 and chunked == v * p - 1
        told.append(f"{chunked:g} over {plain:g} at p = {p}, v = {v}")
    return Finding("boundaries crossed: " + "; ".join(told), holds)


def _multiple(claim: Claim, evidence: Evidence) -> Finding:
    try:
        _ran("interleaved", 4, 6, 2)
    except ValueError as error:
        return Finding(f"refused: {error}", True)
    return Finding("6 microbatches on 4 stages are accepted", False)


def _comparable_memory(claim: Claim, evidence: Evidence) -> Finding:
    """The first stage holds most; comparable is taken as less than one and a half times."""
    ratios = {
        (p, v): _ran("interleaved", p, 4 * p, v).proof.peak_activations[0]
        / _ran("1f1b", p, 4 * p).proof.peak_activations[0]
        for p, v in ((4, 2), (8, 2), (12, 4))
    }
    exact = all(isclose(ratio, 1 + (p - 1) / (p * v)) for (p, v), ratio in ratios.items())
    told = ", ".join(f"{ratio:.3g} at p = {p}, v = {v}" for (p, v), ratio in ratios.items())
    return Finding(f"{told}, {'as' if exact else 'not'} 1 + (p-1)/(p v)", max(ratios.values()) < 1.5)


def _half(claim: Claim, evidence: Evidence) -> Finding:
    bubble = _ran("1f1b", 12, 12).times.bubble_over_ideal
    share = bubble / (1 + bubble)
    return Finding(f"{share:.3f} of the time at p = m = 12", within(share, 0.5, 0.05))


def _falls_with_tensor(claim: Claim, evidence: Evidence) -> Finding:
    n, m = 64, 32
    found = {t: _ran("1f1b", n // t, m).times.bubble_over_ideal for t in (2, 4, 8, 16)}
    exact = all(isclose(bubble, (n / t - 1) / m) for t, bubble in found.items())
    falls = list(found.values()) == sorted(found.values(), reverse=True)
    return Finding(f"{listed(found.values())} at t = {listed(found, 'd')}, n = {n}, m = {m}", exact and falls)


def _falls_with_data(claim: Claim, lens: Lens) -> Finding:
    """Bubbles against (n - d)/b', to the rounding of the plot."""
    apart = []
    for point, bubble in lens.values("figure-6", "bubble_over_ideal"):
        d = point.parallel.data
        apart.append(abs(bubble - (d * pipeline(point) - d) / (batch(point) / point.training.microbatch)))
    return Finding(f"{len(apart)} points, at most {max(apart):.4f} apart", max(apart) <= 0.005 + 1e-9)


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "AN-01", Computed(_bubbles)
    yield "AN-02", Computed(_in_flight)
    yield "AN-03", Computed(_interleaved_bubbles)
    yield "AN-04", Computed(_messages)
    yield "AN-05", Computed(_multiple)
    yield "AN-06", Computed(_comparable_memory)
    yield "AN-07", Computed(_half)
    yield "AN-10", Computed(_falls_with_tensor)
    yield "AN-11", Seen(_falls_with_data)
