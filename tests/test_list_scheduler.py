"""The list scheduler: its cap in shares of a microbatch, messages, and what it is compared with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import built, peaks

from suite.pipeline.proof import prove
from suite.pipeline.timeline import Costs, Link, Network, timeline

COSTS = [(1, 1, 1), (1, 1.5, 0.5), (2, 1, 1), (1, 1, 2), (1, 1.1, 0.8), (3, 1, 0.2)]
MOST = 1e-9


def span(schedule, costs, latency):
    return timeline(schedule, Costs(*costs), Network(link=Link(latency))).bubble_span


def held(program, chunks, kept):
    """The most memory in shares of a microbatch on a rank: F takes it, B leaves `kept` of it, W the rest."""
    live = peak = 0.0
    for action in program:
        live += {"F": 1.0, "B": kept - 1.0, "W": -kept}[action.kind]
        peak = max(peak, live)
    return peak / chunks


@given(
    p=st.integers(1, 6),
    m=st.integers(1, 20),
    v=st.integers(1, 3),
    cap=st.integers(1, 14),
    kept=st.sampled_from([0.0, 0.25, 0.37, 0.7, 1.0]),
    costs=st.sampled_from(COSTS),
    latency=st.sampled_from([0.0, 0.05, 0.7, 5.0]),
)
def test_it_ends_and_holds_no_more_than_the_cap(p, m, v, cap, kept, costs, latency):
    schedule = built("list", p, m, chunks=v, cap=cap, kept=kept, costs=costs, latency=latency)
    span(schedule, costs, latency)
    if v == 1:
        prove(schedule)
    assert max(held(program, v, kept) for program in schedule.programs) <= cap + MOST
    if kept == 1:
        assert max(peaks(schedule)) <= min(cap, m)


@pytest.mark.parametrize("latency", [0.0, 0.05])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 7), (4, 16), (8, 24), (5, 30), (16, 48)])
def test_under_the_cap_of_a_closed_form_it_is_no_worse(p, m, costs, latency):
    for name, cap in (("zb-h1", p), ("zb-h2", 2 * p - 1)):
        own = span(built("list", p, m, cap=cap, costs=costs, latency=latency), costs, latency)
        assert own <= span(built(name, p, m), costs, latency) + MOST, name


@pytest.mark.parametrize("v", [1, 2])
def test_an_order_made_for_its_latency_is_better_at_it(v):
    costs, latency = (1, 1, 1), 0.25
    own, other = (
        span(built("list", 4, 16, cap=8, chunks=v, costs=costs, latency=made), costs, latency)
        for made in (latency, 0.0)
    )
    assert own <= other / 3


def test_activations_that_b_lets_go_make_room():
    costs = (1, 1, 0.5)
    spans = [span(built("list", 8, 32, cap=16, kept=kept, costs=costs), costs, 0.0) for kept in (1.0, 0.7, 0.37)]
    assert spans[0] > spans[1] > spans[2] == 0


def test_more_microbatches_than_show_the_best_order_continue_it():
    short, long = (built("list", 4, m, costs=(1, 1.5, 0.5)) for m in (16, 40))
    for fewer, more in zip(short.programs, long.programs, strict=True):
        first_kinds = [action.kind for action in fewer[:20]]
        assert [action.kind for action in more[:20]] == first_kinds
