"""Bubbles and peaks of every generator against closed forms, mostly at F=B=W=1 (a whole backward is 2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from schedules import built, peaks

from suite.pipeline.timeline import Costs, timeline

SIZES = [(p, k * p) for p in (2, 4, 8, 16) for k in (1, 2, 4, 8)]
FEW = [(4, 1), (4, 2), (4, 3), (8, 2), (8, 7), (16, 6)]  # fewer microbatches than stages
UNEVEN = [(2, 5), (4, 7), (4, 9), (8, 11), (8, 21), (16, 35)]  # no multiple of the stages
UNIT = Costs(1, 1, 1)
EQUAL = Costs(1, 0.5, 0.5)  # a forward and a whole backward take equally long


@dataclass(frozen=True)
class Form:
    """What holds for p ranks and m microbatches; bubbles in microbatches' F, peaks in shares of a rank."""

    name: str
    sizes: list[tuple[int, int]]
    makespan: Callable[[int, int], float]
    span: Callable[[int, int], float]
    peak: Callable[[int, int, int], float]  # of rank r: (r, p, m)
    costs: Costs = UNIT
    fields: tuple[tuple[str, Any], ...] = ()


def same(name, sizes, bubble, peak, costs=UNIT, **fields):
    """A form with one bubble for both measures."""
    return Form(name, sizes, bubble, bubble, peak, costs, tuple(fields.items()))


def v_min_span(p, m):
    """2p-2.5, or 2p-3.5 where 3 divides p; half a slot less at p=5 and 8, and 0.5 at p=2."""
    return {2: 0.5, 5: 7, 8: 13}.get(p, 2 * p - (3.5 if p % 3 == 0 else 2.5))


def v_half_span(p, m):
    return 0 if p == 2 else 1.5 * p - (2 if p % 2 else 3.5)


def chimera_peak(r, p, m):
    """p/2+1 on the outer ranks to p on the inner ones; never more than there are."""
    return min(m, min(m, p) / 2 + 1 + min(r, p - 1 - r))


ANY = SIZES + FEW + UNEVEN
ENOUGH = [(p, m) for p, m in SIZES + UNEVEN if m >= 2 * p]
V_SIZES = [*ENOUGH, *[(p, 2 * p) for p in (3, 5, 6, 7, 9, 10, 12)]]

FORMS = [
    same("gpipe", ANY, lambda p, m: 3 * (p - 1), lambda r, p, m: m),
    same("1f1b", ANY, lambda p, m: 3 * (p - 1), lambda r, p, m: min(p - r, m)),
    *(
        same(
            "interleaved",
            SIZES,
            lambda p, m, v=v: 3 * (p - 1) / v,
            lambda r, p, m, v=v: min(2 * (p - r - 1) + (v - 1) * p + 1, m * v) / v,
            chunks=v,
        )
        for v in (1, 2, 3)
    ),
    *(
        same(
            "looped-bfs",
            ANY,
            lambda p, m, v=v: 3 / v * (p - 1 + (v - 1) * max(0, p - m)),
            lambda r, p, m: m,
            chunks=v,
        )
        for v in (1, 2, 3)
    ),
    same("zb-h1", ANY, lambda p, m: max(p - 1, 2 * p - 1 - m), lambda r, p, m: min(p, m)),
    Form(
        "zb-h2",
        [(p, m) for p, m in ANY if m >= 2 * p - 1],
        lambda p, m: p - 1,
        lambda p, m: 0,
        lambda r, p, m: 2 * p - 1,
    ),
    Form(
        "zb-h2",
        [(p, m) for p, m in SIZES if m == p],
        lambda p, m: 1.5 * p - 2,
        lambda p, m: p - 1,
        lambda r, p, m: p,
    ),
    *(same("interleaved-zb", SIZES, lambda p, m, v=v: (p - 1) / v, lambda r, p, m: p, chunks=v) for v in (1, 2, 3)),
    Form(
        "zb-v",
        ANY,
        lambda p, m: max((p - 1) / 2, 2 * p - 1 - m),
        lambda p, m: max(0, 2 * p - 1 - m),
        lambda r, p, m: min(p, m, (m + 1 + r) / 2),
    ),
    Form("v-min", V_SIZES, v_min_span, v_min_span, lambda r, p, m: (p + 4) // 3),
    Form(
        "v-half",
        V_SIZES,
        lambda p, m: max(0.5, v_half_span(p, m)),
        v_half_span,
        lambda r, p, m: (p + 2) // 2,
    ),
    Form("v-zb", V_SIZES, lambda p, m: (p - 1) / 2, lambda p, m: 0, lambda r, p, m: p),
    same("chimera", SIZES, lambda p, m: p - 2, chimera_peak, EQUAL),
    same("chimera", SIZES, lambda p, m: (p - 2) * (m // p + 1), chimera_peak),
    same("chimera", [(4, 2), (8, 2), (8, 6), (16, 6)], lambda p, m: 2 * p - 2 - m, chimera_peak, EQUAL),
    same("2bp-1f1b", ANY, lambda p, m: max(p - 1, 2 * p - 1 - m), lambda r, p, m: m),
    same("2bp-gpipe", ANY, lambda p, m: 2 * (p - 1), lambda r, p, m: m),
    *(
        same(
            "hanayo",
            SIZES,
            lambda p, m, w=w: (p - 1) * 2 / (2 * w),
            lambda r, p, m, w=w: p - (p - 1 - r) / (2 * w),
            EQUAL,
            chunks=2 * w,
        )
        for w in (1, 2)
    ),
    *(
        same(
            "hanayo",
            [(p, m) for p, m in SIZES if m == p],
            lambda p, m, w=w: 2 * (p - 1) / w,
            lambda r, p, m, w=w: p - (p - 1 - r) / (2 * w),
            chunks=2 * w,
        )
        for w in (1, 2)
    ),
    same("dualpipe", [(p, m) for p, m in ENOUGH if m % 2 == 0], lambda p, m: p / 2 - 1, lambda r, p, m: p + 1),
    same("dualpipe-v", ENOUGH, lambda p, m: (p - 1) / 2, lambda r, p, m: p + 0.5),
    Form("list", ENOUGH, lambda p, m: p - 1, lambda p, m: 0, lambda r, p, m: min(2 * p, m)),
]
CASES = [(form, p, m) for form in FORMS for p, m in form.sizes]


@pytest.mark.parametrize(
    ("form", "p", "m"),
    CASES,
    ids=[f"{form.name}{''.join(f' {k}={v}' for k, v in form.fields)} p={p} m={m}" for form, p, m in CASES],
)
def test_both_bubbles_and_every_ranks_peak(form, p, m):
    schedule = built(form.name, p, m, **dict(form.fields))
    times = timeline(schedule, form.costs)
    assert times.bubble_makespan == pytest.approx(form.makespan(p, m), abs=1e-6)
    assert times.bubble_span == pytest.approx(form.span(p, m), abs=1e-6)
    assert peaks(schedule) == pytest.approx([form.peak(rank, p, m) for rank in range(p)])


@dataclass(frozen=True)
class Bound:
    """Where no closed form is known: neither the bubbles nor the peak of any rank is larger."""

    name: str
    sizes: list[tuple[int, int]]
    bubble: Callable[[int, int], float]
    peak: Callable[[int, int], float]
    costs: Costs = UNIT
    fields: tuple[tuple[str, Any], ...] = ()


SMALL = FEW + UNEVEN
V_FEW = [(p, m) for p, m in ANY if m < 2 * p]
BOUNDS = [
    Bound("zb-h2", SMALL, lambda p, m: max(p - 1, 2 * p - 1 - m, 2 * p - 2 - m // 2), lambda p, m: min(m, 2 * p - 1)),
    Bound("v-min", V_FEW, lambda p, m: max(v_min_span(p, m), 2 * p - 1 - m), lambda p, m: min(m, (p + 4) // 3)),
    Bound("v-half", V_FEW, lambda p, m: max(0.5, v_half_span(p, m), 2 * p - 1 - m), lambda p, m: min(m, (p + 2) // 2)),
    Bound("v-zb", V_FEW, lambda p, m: max((p - 1) / 2, 2 * p - 1 - m), lambda p, m: min(m, p)),
    # Its units of p microbatches take 2p slots each, full or not.
    Bound(
        "chimera",
        [(p, m) for p, m in SMALL if m > 1],
        lambda p, m: 2 * p * -(-m // p) + p - 2 - 2 * m,
        lambda p, m: min(m, p),
        EQUAL,
    ),
    *(
        Bound("hanayo", SMALL, lambda p, m: 2 * (p - 1), lambda p, m: min(m, p), EQUAL, (("chunks", v),))
        for v in (2, 4)
    ),
    *(
        Bound(
            "list",
            SMALL,
            lambda p, m, cap=cap: 3 * p * m if cap < p else 3 * (p - 1),
            lambda p, m, cap=cap: min(m, cap),
            fields=(("cap", cap), ("chunks", v)),
        )
        for cap in (1, 2, 8, 16)
        for v in (1, 2, 3)
    ),
]
BOUND_CASES = [(bound, p, m) for bound in BOUNDS for p, m in bound.sizes]


@pytest.mark.parametrize(
    ("bound", "p", "m"),
    BOUND_CASES,
    ids=[f"{bound.name}{''.join(f' {k}={v}' for k, v in bound.fields)} p={p} m={m}" for bound, p, m in BOUND_CASES],
)
def test_bubbles_and_peak_stay_below_the_bound(bound, p, m):
    schedule = built(bound.name, p, m, **dict(bound.fields))
    times = timeline(schedule, bound.costs)
    assert max(times.bubble_makespan, times.bubble_span) <= bound.bubble(p, m) + 1e-6
    assert max(peaks(schedule)) <= bound.peak(p, m)


COSTS = [(1, 1, 1), (1, 1.2, 0.8), (1, 1.5, 0.5), (1, 1, 0.7), (1.2, 1, 0.9), (2, 1, 1), (1, 2, 1)]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 11), (8, 24)])
def test_zero_bubble_at_other_costs(p, m, costs):
    forward, inputs, weights = costs
    first, second = (timeline(built(name, p, m), Costs(*costs)) for name in ("zb-h1", "zb-h2"))
    assert first.bubble_makespan == pytest.approx((p - 1) * max(forward, inputs, forward + inputs - weights))
    assert second.bubble_span == pytest.approx((p - 1) * max(0, forward + inputs - 2 * weights), abs=1e-6)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("costs", "spread"), [((1, 1.2, 0.8), 0.4), ((1, 1.5, 0.5), 1)])
def test_the_spread_of_costs_is_zb_vs_bubble(p, costs, spread):
    assert timeline(built("zb-v", p, 4 * p), Costs(*costs)).bubble_span == pytest.approx(spread * (p - 1))


def test_v_min_is_fragile():
    costs = Costs(1, 1.2, 0.8)
    spans = {name: timeline(built(name, 4, 16), costs).bubble_span for name in ("v-min", "v-half", "v-zb", "1f1b")}
    assert spans == pytest.approx({"v-min": 14.6, "v-half": 3.8, "v-zb": 1.2, "1f1b": 9})


PRINTED = [  # the known makespans, and spans where they differ
    (2, 4, {"zb-h1": 13, "zb-h2": (13, 12), "zb-v": (12.5, 12), "v-half": (12.5, 12), "v-min": 12.5}),
    (4, 8, {"zb-h1": 27, "zb-h2": (27, 24), "zb-v": (25.5, 24), "v-half": 26.5, "v-min": 29.5}),
    (8, 16, {"zb-h1": 55, "zb-h2": (55, 48), "zb-v": (51.5, 48), "v-half": 56.5, "v-min": 61}),
    (4, 4, {"chimera": 16}),
    (4, 8, {"chimera": 30}),
    (4, 16, {"chimera": 58}),
]


@pytest.mark.parametrize(
    ("name", "p", "m", "known"), [(name, p, m, known) for p, m, names in PRINTED for name, known in names.items()]
)
def test_times_with_unit_costs(name, p, m, known):
    times = timeline(built(name, p, m))
    makespan, span = known if isinstance(known, tuple) else (known, known)
    assert times.makespan == makespan
    assert times.bubble_span + 3 * m == span


def test_hanayos_bubble_grows_with_m_where_the_backward_is_longer():
    bubbles = [timeline(built("hanayo", 4, m)).bubble_makespan for m in (4, 8, 16)]
    assert bubbles == [6, 9, 15]


@pytest.mark.parametrize("v", [1, 2, 3])
def test_a_list_made_for_its_costs_is_better_at_them(v):
    costs = (1, 2.5, 0.5)
    schedules = [built("list", 4, 16, cap=6, chunks=v, costs=made) for made in (costs, (1, 1, 1))]
    own, other = (timeline(schedule, Costs(*costs)).makespan for schedule in schedules)
    assert own <= other
    assert schedules[0].programs != schedules[1].programs
