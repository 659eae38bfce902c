"""How far a value is from one that was printed, which stands for an interval: plainly, and from the interval's edge."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d*))?(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class Difference:
    """Of a value to a printed one, in percent and with its sign.

    `plain` is relative to the printed value, None where that is 0 and the value is not; `beyond` is relative to the
    nearest edge of the interval that rounds to the printed value, and 0 inside of it.
    """

    plain: float | None
    beyond: float


@dataclass(frozen=True)
class Accuracy:
    """Mean and largest absolute percentage error over a number of points, plainly and from the interval's edge."""

    points: int
    mape: float
    largest: float
    mape_beyond: float
    largest_beyond: float


def printed_interval(text: str) -> tuple[float, float]:
    """What may have been rounded to the number as printed: half of its last digit's unit to both sides.

    Raises:
        ValueError: the text is no decimal number.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no printed number; 8.25 or 1e-3 would be one")
    half = 0.5 * 10.0 ** (int(match[2] or 0) - len(match[1] or ""))
    value = float(text)
    return value - half, value + half


def difference(value: float, printed: str) -> Difference:
    """Of the value to the printed number. Raises ValueError where the text is no number."""
    low, high = printed_interval(printed)
    number = float(printed)
    plain = 100 * (value - number) / abs(number) if number else 0.0 if value == 0 else None
    edge = min(max(value, low), high)
    beyond = 0.0 if edge == value else 100 * (value - edge) / abs(edge)
    return Difference(plain, beyond)


def accuracy(differences: Iterable[Difference]) -> Accuracy | None:
    """Over all points; a point without a plain difference counts by its edge. None where there is no point."""
    found = list(differences)
    if not found:
        return None
    plain = [abs(one.beyond if one.plain is None else one.plain) for one in found]
    beyond = [abs(one.beyond) for one in found]
    if not all(map(math.isfinite, plain + beyond)):
        raise ValueError("a difference is not finite")
    return Accuracy(len(found), fmean(plain), max(plain), fmean(beyond), max(beyond))
