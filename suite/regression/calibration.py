"""What this machine can resolve: A against A, its spread, and which tolerances may be asked for after it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from suite.measure.provenance import cores, cpu_model, libraries
from suite.regression.comparison import Comparison, Standing
from suite.regression.planning import (
    found_by,
    half_width,
    pairs_for_equivalence,
    pairs_for_significance,
    smallest_pairs,
)
from suite.regression.verdict import ALPHA, Verdict

CALIBRATION_PAIRS = 10
MOST_WORTH_IT = 30  # pairs; a change that needs more is out of reach here

FOLDER = Path("results/regressions/calibrated")


@dataclass(frozen=True)
class Calibrated:
    """What A against A has shown of one point."""

    point_id: str
    label: str
    pairs: int
    deviation: float  # of one pair's difference, a logarithm
    verdict: str
    machine: str
    day: str

    @property
    def told_apart(self) -> bool:
        """Whether A was found to be faster or slower than A."""
        return self.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)

    def resolves(self, pairs: int) -> float:
        """The smallest change, relative, that so many pairs find nine times in ten, at a tolerance of half of it."""
        found = found_by(pairs, self.deviation, self.pairs, ALPHA)
        return math.expm1(max(found, 2 * half_width(pairs, self.deviation, self.pairs)))

    def least_tolerance(self, pairs: int) -> float:
        """The smallest tolerance, relative, that the interval of a number of pairs fits into."""
        return math.expm1(half_width(pairs, self.deviation, self.pairs))

    def pairs_for(self, change: float) -> int | None:
        """Pairs that find a change, relative, at a tolerance of half of it; None above MOST_WORTH_IT."""
        size = math.log1p(change)
        needed = (
            pairs_for_significance(size, self.deviation, self.pairs, ALPHA),
            pairs_for_equivalence(size / 2, self.deviation, self.pairs),
        )
        most = max((count for count in needed if count is not None), default=0) if None not in needed else None
        return most if most is not None and most <= MOST_WORTH_IT else None

    def sentence(self, change: float, pairs: int) -> str:
        """What it means for a change that somebody wants to find."""
        spread = f"pairs differ by {100 * self.deviation:.2f}% (sd of {self.pairs})"
        if self.told_apart:
            return f"{spread}; A against A is {self.verdict}: the machine is not steady, and nothing may be gated on it"
        needed = self.pairs_for(change)
        default = f"{pairs} pairs find {100 * self.resolves(pairs):.1f}%"
        if needed is None:
            most = f"{MOST_WORTH_IT} find {100 * self.resolves(MOST_WORTH_IT):.1f}%"
            return f"{spread}; a change of {100 * change:g}% is out of reach here: {default}, {most}"
        tolerance = f"--tolerance {100 * change / 2:g}%"
        return f"{spread}; a change of {100 * change:g}% needs {needed} pairs and {tolerance}; {default}"


def machine() -> str:
    """The host in words, as far as they can be said before anything is launched."""
    return f"{cpu_model()}, {cores()} cores, torch {libraries().get('torch', 'none')}"


def calibrated(found: Comparison) -> list[Calibrated]:
    """The calibration of every point that an A/A comparison has measured."""
    day = datetime.now(UTC).date().isoformat()
    return [
        Calibrated(
            row.key.point_id, row.label, row.effect.pairs, row.effect.deviation, str(row.verdict), machine(), day
        )
        for row in found.rows
        if row.standing is Standing.COMPARED and row.effect and row.effect.deviation is not None
    ]


def keep(experiment: str, found: Sequence[Calibrated]) -> Path:
    """Write the calibrations beside those of other points."""
    file = FOLDER / f"{experiment}.json"
    known = {(one.machine, one.point_id): one for one in [*read(experiment), *found]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(one) for _, one in sorted(known.items())], indent=1) + "\n")
    return file


def read(experiment: str) -> list[Calibrated]:
    """The calibrations that are there. Raises ValueError for a file that no calibration wrote."""
    file = FOLDER / f"{experiment}.json"
    if not file.exists():
        return []
    try:
        return [Calibrated(**fields) for fields in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: no calibration ({error}); delete it and calibrate again") from None


def why_not_gated(one: Calibrated, tolerance: float, pairs: int) -> str | None:
    """Why a tolerance cannot be asked of this machine; None where it can."""
    if one.told_apart:
        return f"{one.label} {one.point_id}: A against A was {one.verdict} on {one.day}; calibrate again"
    least = one.least_tolerance(pairs)
    if least <= tolerance:
        return None
    enough = pairs_for_equivalence(math.log1p(tolerance), one.deviation, one.pairs)
    more = f"--pairs {max(enough, smallest_pairs(ALPHA))}, or " if enough and enough <= MOST_WORTH_IT else ""
    return (
        f"{one.label} {one.point_id}: --tolerance {100 * tolerance:g}% is below the {100 * least:.1f}% that {pairs} "
        f"pairs resolve on this machine (calibrated {one.day}); {more}--tolerance {math.ceil(100 * least)}% would work"
    )
