"""Curves as claims read them: two series against each other, the best place, what stays constant."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from suite.report.claims.check import Finding
from suite.report.claims.evidence import Curves, MissingError, listed

EVEN = 0.02  # rates that differ by less are the same


def both(curves: Curves, name: str) -> tuple[dict[Any, float], dict[Any, float]]:
    """The curves without and with what the series are about, at the places that both have.

    Raises MissingError where one of them is not there.
    """
    if set(curves) != {False, True}:
        raise MissingError(f"{name} has not both of its series")
    common = [x for x in curves[False] if x in curves[True]]
    return {x: curves[False][x] for x in common}, {x: curves[True][x] for x in common}


def ratios_of(curves: Curves, name: str) -> dict[Any, float]:
    """With over without, by place."""
    without, with_ = both(curves, name)
    return {x: with_[x] / without[x] for x in without}


def best_of(curve: Mapping[Any, float]) -> Any:
    """The place of the highest value."""
    return max(curve, key=lambda x: curve[x])


def said(ratios: Mapping[Any, float], symbol: str = "B") -> str:
    """Numbers with their places."""
    return ", ".join(f"{ratio:.3f} at {symbol} = {x}" for x, ratio in ratios.items())


def constant(values: Mapping[Any, float], tolerance: float) -> Finding:
    """Whether all values are near their mean."""
    middle = fmean(values.values())
    apart = max(abs(value / middle - 1) for value in values.values())
    return Finding(f"{listed(values.values(), '.4g')}, within {100 * apart:.1f} % of their mean", apart <= tolerance)
