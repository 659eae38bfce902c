"""Steps in a history of noisy values: piecewise constant, least absolute deviations, a price for every step.

The L1-Potts functional, minimised exactly by dynamic programming (Storath, Weinmann and Unser 2014; asv uses the same).
"""

from bisect import insort
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

PRICE = 4.0  # of a step, in robust standard deviations times the logarithm of the number of runs
LEAST_EFFECT = 0.02  # a smaller step is none
LEAST_RUNS = 3  # on either side of a step

_NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute deviation


def find_steps(values: Sequence[float] | np.ndarray, least: float = LEAST_EFFECT) -> list[int]:
    """Where the values' level changes by at least `least`: the index of the first value at each new level.

    Values are logarithms, so that `least` is relative.
    """
    series = [float(value) for value in values]
    if len(series) < 2 * LEAST_RUNS:
        return []
    steps = _potts(series, PRICE * _spread(series) * float(np.log(len(series))))
    while steps:
        effects = [abs(_level(series, steps, at + 1) - _level(series, steps, at)) for at in range(len(steps))]
        smallest = min(range(len(steps)), key=lambda at: effects[at])
        if effects[smallest] >= np.log1p(least):
            return steps
        del steps[smallest]
    return []


def levels(values: Sequence[float], steps: Sequence[int]) -> list[float]:
    """The median of every segment between steps."""
    return [_level(values, steps, at) for at in range(len(steps) + 1)]


def _level(values: Sequence[float], steps: Sequence[int], segment: int) -> float:
    ends = [0, *steps, len(values)]
    return median(values[ends[segment] : ends[segment + 1]])


def _spread(series: Sequence[float]) -> float:
    """A standard deviation that steps do not enlarge: from the differences of neighbours."""
    return _NORMAL * median(abs(b - a) for a, b in pairwise(series)) / 2**0.5


def _potts(series: Sequence[float], price: float) -> list[int]:
    """The best segments, none shorter than LEAST_RUNS."""
    count = len(series)
    best = [0.0] + [float("inf")] * count
    before = [0] * (count + 1)
    for start in range(count):
        if start and best[start] == float("inf"):
            continue
        base = best[start] + (price if start else 0.0)
        segment: list[float] = []
        low = high = 0.0  # sums of the smaller and the larger half
        for end in range(start + 1, count + 1):
            value = series[end - 1]
            insort(segment, value)
            middle = len(segment) // 2
            low, high = sum(segment[:middle]), sum(segment[-middle:]) if middle else 0.0
            if end - start >= LEAST_RUNS and base + high - low < best[end]:
                best[end], before[end] = base + high - low, start
    steps, end = [], count
    while before[end]:
        end = before[end]
        steps.append(end)
    return steps[::-1]
