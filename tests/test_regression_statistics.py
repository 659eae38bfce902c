"""The paired statistics against plain enumerations, and the verdicts on noise that is known."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.regression.false_alarms import TRIALS, rule
from suite.regression.paired import _drawn, effect_of, hodges_lehmann, interval, sign_flip
from suite.regression.planning import found_by, pairs_for_significance, smallest_pairs
from suite.regression.steps import find_steps, levels
from suite.regression.verdict import Verdict, decide, holm

# Quarters add up without rounding, and repeat: ties and zeros are among them.
quarters = st.integers(-40, 40).map(lambda number: number / 4)
plain = st.floats(-0.5, 0.5, allow_subnormal=False)
few = st.one_of(st.lists(quarters, min_size=1, max_size=9), st.lists(plain, min_size=1, max_size=9))


def _patterns(count):
    return itertools.product((-1, 1), repeat=count)


@settings(max_examples=60, deadline=None)
@given(few)
def test_the_sign_flip_test_counts_every_pattern_of_signs(values):
    seen = math.fsum(values) - 1e-12 * math.fsum(map(abs, values))
    reached = sum(
        math.fsum(map(math.prod, zip(signs, values, strict=True))) >= seen for signs in _patterns(len(values))
    )
    assert sign_flip(np.array(values)) == reached / 2 ** len(values)


@settings(max_examples=60, deadline=None)
@given(few)
def test_estimate_and_interval_are_those_of_all_averages_of_two(values):
    averages = sorted((one + other) / 2 for one, other in itertools.combinations_with_replacement(values, 2))
    assert hodges_lehmann(np.array(values)) == pytest.approx(statistics.median(averages), abs=1e-12)
    ranks = range(1, len(values) + 1)
    sums = [sum(rank for sign, rank in zip(signs, ranks, strict=True) if sign > 0) for signs in _patterns(len(values))]
    covered = [1 - 2 * sum(total <= most for total in sums) / len(sums) for most in range(len(averages))]
    cut = sum(share >= 0.95 for share in covered)
    low, high, coverage = interval(np.array(values))
    if cut:
        assert (low, high, coverage) == (averages[cut - 1], averages[-cut], covered[cut - 1])
    else:
        assert (low, high, coverage) == (-math.inf, math.inf, 1.0)


@pytest.mark.parametrize(("pairs", "first", "last", "percent"), [(6, 1, 21, 96.9), (8, 4, 33, 96.1), (10, 9, 47, 95.1)])
def test_the_interval_of_the_tables(pairs, first, last, percent):
    """Hollander, Wolfe and Chicken, table A.4."""
    values = np.sort(np.random.default_rng(pairs).normal(size=pairs))
    averages = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    low, high, coverage = interval(values)
    assert (low, high) == pytest.approx((averages[first - 1], averages[last - 1]))
    assert round(100 * coverage, 1) == percent


def test_many_pairs_are_exact_and_very_many_are_drawn():
    values = np.random.default_rng(1).normal(0.2, 1, 30)
    exact = sign_flip(values)
    drawn = _drawn(values, values.sum())
    assert drawn == pytest.approx(exact, abs=5 * math.sqrt(exact / 1e6))
    assert 0 < sign_flip(np.full(41, 0.1)) <= 2e-6, "never zero"


def test_an_effect_needs_numbers():
    for values in ([], [0.1, math.nan]):
        with pytest.raises(ValueError, match="at least one difference"):
            effect_of(values)


def _one(values, tolerance=0.02):
    return decide([effect_of(values)], [tolerance])[0]


def test_verdicts():
    slower = [0.03 + 0.001 * step for step in range(8)]
    assert _one(slower).verdict is Verdict.REGRESSION
    assert _one([-value for value in slower]).verdict is Verdict.IMPROVEMENT
    assert _one([0.001 * step for step in range(-4, 4)]).verdict is Verdict.EQUIVALENT
    assert _one(slower, tolerance=0.5).verdict is Verdict.EQUIVALENT
    few = _one(slower[:6])
    assert (few.verdict, few.more_pairs) == (Verdict.INCONCLUSIVE, 7), "the smallest p of six pairs is 1/64"
    assert _one(slower[:1]).why == "about 7 pairs would decide it"
    noisy = _one([0.5, -0.4, 0.3, -0.6, 0.4, -0.3, 0.2, -0.1])
    assert (noisy.verdict, noisy.why) == (Verdict.INCONCLUSIVE, "more than 200 pairs would decide it")


def test_of_many_points_each_has_to_show_more():
    clear = effect_of([0.03 + 0.001 * step for step in range(8)])
    assert clear.p_slower == 1 / 256
    few, many = decide([clear] * 12, [0.02] * 12), decide([clear] * 13, [0.02] * 13)
    assert {one.verdict for one in few} == {Verdict.REGRESSION}
    assert {(one.verdict, one.more_pairs) for one in many} == {(Verdict.INCONCLUSIVE, 9)}
    assert holm([0.04, 0.001, 0.2]) == [0.01, 0.01, 0.01], "a point's own limit is one percent at most"
    assert holm([0.004] * 20) == [0.0025] * 20


def test_planned_pairs_find_what_they_are_planned_for():
    assert [smallest_pairs(alpha) for alpha in (0.05, 0.01, 1 / 128)] == [5, 7, 7]
    needed = pairs_for_significance(math.log(1.1), 0.08, 10, 0.01)
    assert found_by(needed, 0.08, 10, 0.01) <= math.log(1.1) < found_by(needed - 1, 0.08, 10, 0.01)
    draw = np.random.default_rng(3)
    true = 0.08 * math.sqrt(9 / 5.380)  # the upper end for a deviation seen in ten pairs; chi-squared from tables
    found = [effect_of(draw.normal(math.log(1.1), true, needed)).p_slower <= 0.01 for _ in range(400)]
    assert 0.87 < np.mean(found) < 0.94


@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.03])
def test_nothing_is_a_regression_where_nothing_changed(deviation):
    found = rule("ABBA", deviation, 8, 0.0)
    assert found.total() == TRIALS == 2000
    assert found[Verdict.REGRESSION] <= 0.02 * TRIALS
    assert found[Verdict.EQUIVALENT if deviation == 0.003 else Verdict.INCONCLUSIVE] > {0.01: 0.2}.get(deviation, 0.95)


@pytest.mark.parametrize(("pairs", "least"), [(8, 0.85), (12, 0.95)])
def test_three_percent_are_found_at_one_percent_of_noise(pairs, least):
    assert rule("ABBA", 0.01, pairs, 0.03, 500)[Verdict.REGRESSION] >= least * 500


def test_steps_in_a_history():
    noise = np.random.default_rng(5).normal(0, 0.005, 60)
    assert find_steps(noise) == []
    noise[20:] += math.log(1.08)
    noise[40:] -= math.log(1.03)
    noise[10] += 0.5
    assert find_steps(noise) == [20, 40]
    assert np.diff(levels(noise, [20, 40])) == pytest.approx([math.log(1.08), -math.log(1.03)], abs=0.004)
    assert find_steps(noise, least=0.04) == [20], "a smaller step is none"
    assert find_steps([0.0, 0.0, 0.0, 0.1, 0.1]) == [], "too few to tell a step from an outlier"
    assert find_steps([0.0] * 3 + [0.1] * 3) == [3]
