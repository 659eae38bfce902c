"""From effects to verdicts: what is slower, what is faster, what is the same, and what the data do not say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from suite.regression.paired import Effect
from suite.regression.planning import MOST_PAIRS, pairs_for_equivalence, pairs_for_significance, smallest_pairs

ALPHA = 0.01  # of a point's one-sided test
FAMILY_ALPHA = 0.05  # of any false alarm among all points of a comparison, by Holm's procedure
DEFAULT_TOLERANCE = 0.02


class Verdict(StrEnum):
    """What the launches of a point say."""

    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Decision:
    """A verdict with what it rests on."""

    verdict: Verdict
    tolerance: float  # the change that matters: 0.02 is 2 %
    alpha: float  # that the p-value had to meet
    more_pairs: int | None = None  # of an inconclusive point: pairs in all that would decide it; None: above MOST_PAIRS

    @property
    def why(self) -> str:
        """What would decide an inconclusive point; empty for the others."""
        if self.verdict is not Verdict.INCONCLUSIVE:
            return ""
        if self.more_pairs is None:
            return f"more than {MOST_PAIRS} pairs would decide it"
        return f"about {self.more_pairs} pairs would decide it"


def decide(effects: Sequence[Effect], tolerances: Sequence[float]) -> list[Decision]:
    """The verdict on every point of one comparison.

    REGRESSION: slower with p within ALPHA and Holm's limit, and the estimate at or above the tolerance. IMPROVEMENT:
    the mirror image. EQUIVALENT: the whole interval within the tolerance either way. INCONCLUSIVE otherwise.
    """
    slower = holm([effect.p_slower for effect in effects])
    faster = holm([effect.p_faster for effect in effects])
    return [_decide(*given) for given in zip(effects, tolerances, slower, faster, strict=True)]


def _decide(effect: Effect, tolerance: float, slower: float, faster: float) -> Decision:
    limit = math.log1p(tolerance)
    alpha = slower if effect.estimate >= 0 else faster
    if effect.estimate >= limit and effect.p_slower <= slower:
        verdict = Verdict.REGRESSION
    elif effect.estimate <= -limit and effect.p_faster <= faster:
        verdict = Verdict.IMPROVEMENT
    elif -limit < effect.low and effect.high < limit:
        verdict = Verdict.EQUIVALENT
    else:
        return Decision(Verdict.INCONCLUSIVE, tolerance, alpha, _pairs_to_decide(effect, limit, alpha))
    return Decision(verdict, tolerance, alpha)


def _pairs_to_decide(effect: Effect, limit: float, alpha: float) -> int | None:
    """Pairs with which an effect of the estimated size would get a verdict; None where no bearable number would."""
    if effect.deviation is None:
        return smallest_pairs(alpha)
    size = abs(effect.estimate)
    if size >= limit:
        needed = pairs_for_significance(size, effect.deviation, effect.pairs, alpha)
    else:
        needed = pairs_for_equivalence(limit - size, effect.deviation, effect.pairs)
    return None if needed is None else max(needed, effect.pairs + 1)


def holm(values: Sequence[float]) -> list[float]:
    """The limit that each p-value has to meet, ALPHA at most, so that any false alarm among all has FAMILY_ALPHA.

    Step by step from the smallest: once one exceeds its limit, those after it have to meet the same one, and do not.
    Holm 1979.
    """
    limits = [0.0] * len(values)
    order = sorted(range(len(values)), key=lambda place: values[place])
    stopped = None
    for step, place in enumerate(order):
        limits[place] = stopped or min(ALPHA, FAMILY_ALPHA / (len(values) - step))
        if values[place] > limits[place] and stopped is None:
            stopped = limits[place]
    return limits
