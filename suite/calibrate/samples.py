"""What was measured: medians with what they are of."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One operation of one size: median seconds over rounds and ranks, and the distance of its quartiles.

    `together` ranks did the same at the same time. Of `hidden`, what is hidden of a reduction, it is a share.
    """

    what: str
    sizes: dict[str, Any]
    seconds: float
    spread: float
    together: int

    def as_json(self) -> dict[str, Any]:
        """For the file of measurements."""
        return asdict(self)
