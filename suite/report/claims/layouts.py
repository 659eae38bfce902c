"""Claims about layouts: pipeline depth, tensor against pipeline against data parallelism, figures 11 and 13 to 15."""

import itertools
from collections.abc import Iterator

from suite.experiment.point import Point
from suite.report.claims.check import RELATIVE, Check, Finding, Seen
from suite.report.claims.curves import EVEN, best_of, constant, said
from suite.report.claims.evidence import Curves, Lens, batch, listed, microbatch, pipeline, ranks, tensor
from suite.report.claims.listed import Claim

_SWEEPS = {f"figure-{number}": "tflops_per_gpu" for number in range(11, 16)} | {"figure-17": "sequences_per_s"}


def _depths(lens: Lens) -> Curves:
    return lens.curves("figure-11", batch, pipeline)


def _deeper(claim: Claim, lens: Lens) -> Finding:
    kept = {size: list(curve.values())[-1] / next(iter(curve.values())) for size, curve in _depths(lens).items()}
    values = list(kept.values())
    return Finding(said(kept), values == sorted(values) and values[0] < values[-1])


def _bubble_explains_depth(claim: Claim, lens: Lens) -> Finding:
    size, curve = next(iter(_depths(lens).items()))
    alone = next(iter(curve.values()))
    expected = {p: alone / (1 + (p - 1) / size) for p in curve}
    apart = max(abs(expected[p] / rate - 1) for p, rate in curve.items())
    text = f"{listed(expected.values(), '.4g')} expected, {listed(curve.values(), '.4g')} found at B = {size}"
    return Finding(text, apart <= 0.04)


def _layouts(lens: Lens) -> Curves:
    return lens.curves("figure-13", batch, tensor)


def _best_tensor(claim: Claim, lens: Lens) -> Finding:
    """Against the published best, which is the node's size."""
    best, said = ({best_of(curve) for curve in _layouts(one).values()} for one in (lens, lens.published))
    return Finding(f"best at t = {listed(best, 'd')}", best == said and len(said) == 1)


def _ends_below(claim: Claim, lens: Lens) -> Finding:
    told, holds = [], True
    for size, curve in _layouts(lens).items():
        first, *_, last = curve.values()
        holds = holds and max(first, last) < max(curve.values())
        told.append(f"{first:.4g} and {last:.4g} against {max(curve.values()):.4g} at B = {size}")
    return Finding("; ".join(told), holds)


def _worst_layout(claim: Claim, lens: Lens) -> Finding:
    ratios = {size: max(curve.values()) / min(curve.values()) for size, curve in _layouts(lens).items()}
    return Finding(said(ratios), max(ratios.values()) >= 2 * (1 - RELATIVE))


def _falls(curves: Curves) -> bool:
    return all(
        after < before * (1 + EVEN)
        for curve in curves.values()
        for before, after in zip(list(curve.values()), list(curve.values())[1:], strict=False)
    ) and all(list(curve.values())[-1] < next(iter(curve.values())) for curve in curves.values())


def _ends(curves: Curves) -> str:
    parts = ((size, list(curve.values())) for size, curve in curves.items())
    return ", ".join(f"{values[0]:.4g} to {values[-1]:.4g} at B = {size}" for size, values in parts)


def _falls_with_pipeline(claim: Claim, lens: Lens) -> Finding:
    curves = lens.curves("figure-14", batch, pipeline)
    return Finding(_ends(curves), _falls(curves))


def _only_bubble(claim: Claim, lens: Lens) -> Finding:
    """Constant at the largest batch, within a tenth."""
    corrected: Curves = {}
    for point, rate in lens.values("figure-14"):
        bubble = (ranks(point) - point.parallel.data) / (batch(point) / microbatch(point))
        corrected.setdefault(batch(point), {})[pipeline(point)] = rate * (1 + bubble)
    return constant(dict(sorted(corrected[max(corrected)].items())), 0.1)


def _tensors(lens: Lens) -> Curves:
    return lens.curves("figure-15", batch, tensor)


def _falls_with_tensor(claim: Claim, lens: Lens) -> Finding:
    """Most between 8, the node's size, and 16."""
    curves = _tensors(lens)
    steps = {
        size: {t: 1 - curve[t] / before for t, before in zip(list(curve)[1:], curve.values(), strict=False)}
        for size, curve in curves.items()
    }
    told = "; ".join(
        f"{listed(curve.values())} at B = {size}, -{100 * steps[size][16]:.0f} % from t = 8 to 16"
        for size, curve in curves.items()
    )
    leaving = all(step[16] > max(loss for t, loss in step.items() if t < 16) for step in steps.values())
    return Finding(told, _falls(curves) and leaving)


def _batch_makes_no_difference(claim: Claim, lens: Lens) -> Finding:
    rates = [curve[max(curve)] for curve in _tensors(lens).values()]
    return Finding(f"{listed(rates)} TFLOP/s", max(rates) - min(rates) <= 1 + 1e-9)


def _smallest_model_parallel(claim: Claim, lens: Lens) -> Finding:
    """Best is the smallest t p, or as good as it."""
    told, holds = [], True
    for name in ("figure-14", "figure-15"):
        for size, curve in lens.curves(name, batch, lambda point: tensor(point) * pipeline(point)).items():
            best = best_of(curve)
            holds = holds and curve[min(curve)] >= curve[best] * (1 - EVEN)
            told.append(f"{best} ({name}, B = {size})")
    return Finding(f"best t p: {', '.join(told)}", holds)


def _larger_batches(claim: Claim, lens: Lens) -> Finding:
    """Every configuration of figures 11 to 15 and 17, from each batch to the next."""
    rises, pairs = 0, 0
    for name, metric in _SWEEPS.items():
        curves = lens.curves(name, _all_but_batch, batch, metric)
        for curve in curves.values():
            values = list(curve.values())
            rises += sum(after > before * (1 - EVEN) for before, after in itertools.pairwise(values))
            pairs += len(values) - 1
    return Finding(f"{rises} of {pairs} steps do not fall", rises == pairs)


def _all_but_batch(point: Point) -> str:
    return point.model_copy(update={"training": point.training.model_copy(update={"global_batch": 1})}).id


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "AN-13", Seen(_larger_batches, anywhere=True)
    yield "AN-14", Seen(_best_tensor)
    yield "AN-15", Seen(_smallest_model_parallel, anywhere=True)
    yield "F11-01", Seen(_deeper, anywhere=True)
    yield "F11-02", Seen(_bubble_explains_depth)
    yield "F13-01", Seen(_best_tensor)
    yield "F13-02", Seen(_ends_below, anywhere=True)
    yield "F13-03", Seen(_worst_layout)
    yield "F14-01", Seen(_falls_with_pipeline, anywhere=True)
    yield "F14-02", Seen(_only_bubble)
    yield "F15-01", Seen(_falls_with_tensor)
    yield "F15-02", Seen(_batch_makes_no_difference)
