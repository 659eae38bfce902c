"""How many pairs a change needs, and what change a number of pairs finds, from the spread of their differences.

Normal approximations (Guenther 1981 for the one-sample t-test), held against the exact rules by
`suite.regression.false_alarms`. Few pairs know their spread badly; it is planned with the upper end of its interval.
"""

import math
from statistics import NormalDist

MOST_PAIRS = 200  # above which no number is given
POWER = 0.9  # with which a change of the size is found
SPREAD_CONFIDENCE = 0.8  # that the true spread is below the one planned with

_quantile = NormalDist().inv_cdf


def smallest_pairs(alpha: float) -> int:
    """The fewest pairs whose smallest possible p, one pattern of signs in 2^n, is within alpha."""
    return math.ceil(math.log2(1 / alpha) - 1e-9)


def upper_deviation(deviation: float, pairs: int) -> float:
    """The standard deviation's one-sided upper limit; chi-squared by Wilson and Hilferty 1931."""
    freedom = pairs - 1
    spread = 2 / (9 * freedom)
    chi_squared = freedom * (1 - spread + _quantile(1 - SPREAD_CONFIDENCE) * math.sqrt(spread)) ** 3
    return deviation * math.sqrt(freedom / chi_squared)


def pairs_for_significance(effect: float, deviation: float, pairs: int, alpha: float) -> int | None:
    """Pairs that find a change of `effect` (a logarithm); None above MOST_PAIRS.

    `deviation` is that of one difference, known from `pairs` of them.
    """
    ratio = upper_deviation(deviation, pairs) / effect
    z = _quantile(1 - alpha)
    needed = math.ceil(((z + _quantile(POWER)) * ratio) ** 2 + z**2 / 2)
    return _bearable(max(needed, smallest_pairs(alpha)))


def pairs_for_equivalence(room: float, deviation: float, pairs: int) -> int | None:
    """Pairs whose interval reaches less than `room` from the estimate; None above MOST_PAIRS."""
    if room <= 0:
        return None
    ratio = upper_deviation(deviation, pairs) / room
    return _bearable(max(6, math.ceil((_quantile(0.975) * ratio) ** 2 + 2)))


def found_by(count: int, deviation: float, pairs: int, alpha: float) -> float:
    """The smallest change (a logarithm) that `count` pairs find with POWER; the inverse of `pairs_for_significance`."""
    z = _quantile(1 - alpha)
    return (z + _quantile(POWER)) * upper_deviation(deviation, pairs) / math.sqrt(count - z**2 / 2)


def half_width(count: int, deviation: float, pairs: int) -> float:
    """How far the interval of `count` pairs reaches from the estimate: below it, nothing can be told apart."""
    return _quantile(0.975) * upper_deviation(deviation, pairs) / math.sqrt(count - 2)


def _bearable(pairs: int) -> int | None:
    return pairs if pairs <= MOST_PAIRS else None
