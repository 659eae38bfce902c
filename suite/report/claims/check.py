"""How a claim is checked, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass

from suite.report.claims.evidence import Evidence, Lens
from suite.report.claims.listed import Claim

RELATIVE = 0.05  # by how much a number that is no quotation may be off, as claims.csv has it for simulated ones


@dataclass(frozen=True)
class Finding:
    """What one source says: its numbers in words, and whether the claim holds by them; None: they leave it open."""

    text: str
    holds: bool | None


@dataclass(frozen=True)
class Computed:
    """A check that needs no record: arithmetic on published rows, or the generators and the event simulation."""

    of: Callable[[Claim, Evidence], Finding]


@dataclass(frozen=True)
class Seen:
    """A check that every source answers with the values it has; the paper's own values by the same code.

    `anywhere`: a statement of direction, which a smaller machine can show too; others are of the paper's scale.
    """

    of: Callable[[Claim, Lens], Finding]
    anywhere: bool = False


@dataclass(frozen=True)
class Untestable:
    """A claim that nothing here can decide, and why; with numbers where some follow from the claim."""

    why: Callable[[Claim, Evidence], str]


@dataclass(frozen=True)
class Inconsistency:
    """The paper against itself: the numbers that show it."""

    of: Callable[[Claim, Evidence], str]


Check = Computed | Seen | Untestable | Inconsistency


def within(value: float, wanted: float, tolerance: float) -> bool:
    """Whether the value is as wanted, give or take the tolerance."""
    return abs(value - wanted) <= tolerance + 1e-9
