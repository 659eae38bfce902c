"""Statistics of paired differences, all of them exact: Hodges-Lehmann estimate, its interval, the sign-flip test.

A difference is ln(candidate / baseline) of one pair of launches, each launch being one number. Iterations of a launch
share its placement, clocks and network route, and are no replication.
Hodges and Lehmann 1963; Fisher's randomisation test, Pitman 1937; the interval from Wilcoxon's signed ranks, Hollander,
Wolfe and Chicken 2014, section 3.3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95  # at least, of an interval

_MOST_EXACT = 40  # pairs of which every pattern of signs is counted
_DRAWN = 1_000_000  # patterns of signs that stand for all of more pairs
_ROUNDING = 1e-12  # relative, between two ways to add the same numbers


@dataclass(frozen=True)
class Effect:
    """What the pairs say: logarithms of the ratio of times, above 0 where the candidate is slower."""

    pairs: int
    estimate: float  # Hodges-Lehmann
    low: float  # of the interval; infinite where there are too few pairs for one
    high: float
    coverage: float  # of the interval, never below LEVEL
    p_slower: float  # one-sided, of a mean difference at least as large
    p_faster: float
    deviation: float | None  # standard deviation of a difference; None of a single pair


def effect_of(differences: Sequence[float]) -> Effect:
    """All of it. Raises ValueError without differences, or where one is not finite."""
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("an effect needs at least one difference, and all of them finite")
    low, high, coverage = interval(values)
    return Effect(
        pairs=len(values),
        estimate=hodges_lehmann(values),
        low=low,
        high=high,
        coverage=coverage,
        p_slower=sign_flip(values),
        p_faster=sign_flip(-values),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else None,
    )


def walsh_averages(values: np.ndarray) -> np.ndarray:
    """The averages of all pairs of values, each with itself too, in order."""
    first, second = np.triu_indices(len(values))
    return np.sort((values[first] + values[second]) / 2)


def hodges_lehmann(values: np.ndarray) -> float:
    """The median of the Walsh averages."""
    return float(np.median(walsh_averages(values)))


def interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """The shortest pair of Walsh averages that covers the centre with at least `level`, and what it covers.

    With fewer than six values none covers 95 %: the interval is the whole line.
    """
    counts = _signed_rank_counts(len(values))
    tail = np.cumsum(counts) / 2.0 ** len(values)  # of a rank sum of at most 0, 1, 2, ...
    rank = int(np.searchsorted(tail, (1 - level) / 2, side="right"))
    if not rank:
        return -math.inf, math.inf, 1.0
    averages = walsh_averages(values)
    return float(averages[rank - 1]), float(averages[-rank]), 1 - 2 * float(tail[rank - 1])


def _signed_rank_counts(pairs: int) -> np.ndarray:
    """How many of the 2^n patterns of signs give each sum of positive ranks, from 0 to n (n + 1) / 2."""
    counts = np.zeros(pairs * (pairs + 1) // 2 + 1)
    counts[0] = 1
    for rank in range(1, pairs + 1):
        counts[rank:] += counts[:-rank].copy()
    return counts


def sign_flip(values: np.ndarray) -> float:
    """The share of the 2^n patterns of signs whose mean is at least the one seen.

    Exact up to 40 values: every sum of one half's patterns finds by bisection how many sums of the other half's reach
    the total with it. Above that, of a million patterns drawn with a fixed seed and the one seen.
    """
    total, slack = values.sum(), _ROUNDING * np.abs(values).sum()
    if len(values) > _MOST_EXACT:
        return _drawn(values, total - slack)
    half = len(values) // 2
    left, right = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    reach = len(right) - np.searchsorted(right, total - slack - left, side="left")
    return float(reach.sum() / 2.0 ** len(values))


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """The sums of all patterns of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def _drawn(values: np.ndarray, least: float) -> float:
    draw = np.random.default_rng(0)
    reached, left = 1, _DRAWN
    while left:
        some = min(left, 50_000)
        signs = draw.integers(0, 2, (some, len(values)), dtype=np.int8) * 2.0 - 1
        reached += int((signs @ values >= least).sum())
        left -= some
    return reached / (_DRAWN + 1)
