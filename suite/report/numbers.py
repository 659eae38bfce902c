"""Numbers as a person reads them: three or four significant digits, units of a sensible size."""

import math

ABSENT = "–"


def absent(value: object) -> bool:
    """Whether there is no number: None, or the NaN that stands for it in a table."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def significant(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits; thousands separated; powers of ten below a thousandth."""
    if absent(value) or value is None:
        return ABSENT
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent < -3:
        return f"{value:.{digits - 1}e}"
    if exponent >= digits - 1:
        return f"{value:,.0f}"
    return f"{rounded:.{digits - 1 - exponent}f}"


def percent(value: float | None) -> str:
    """A percentage with three significant digits."""
    return ABSENT if absent(value) else f"{significant(value)}%"


def memory(value: float | None) -> str:
    """Bytes in binary units, three significant digits."""
    if absent(value) or value is None:
        return ABSENT
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} B" if unit == "B" else f"{significant(size)} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds, or milliseconds below one second."""
    if absent(seconds) or seconds is None:
        return ABSENT
    return f"{significant(seconds)} s" if seconds >= 1 else f"{significant(1000 * seconds)} ms"
