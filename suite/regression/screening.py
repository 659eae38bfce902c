"""Two stages where there are many points: a few pairs of all, then fresh pairs of what they make suspect."""

import math

from suite.regression.paired import Effect
from suite.regression.verdict import Decision, Verdict

SCREEN_PAIRS = 6  # the fewest whose interval covers 95 %, so that a point can be called equivalent
SCREEN_ABOVE = 3  # points of which all are measured in full


def goes_on(decision: Decision, effect: Effect) -> bool:
    """Whether a screened point is measured again: it may have changed by the tolerance, and half of it is seen.

    Its verdict then comes from the fresh pairs alone, so that choosing it costs nothing.
    """
    if decision.verdict is Verdict.EQUIVALENT:
        return False
    return abs(effect.estimate) >= math.log1p(decision.tolerance) / 2
