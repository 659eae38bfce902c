"""Where points can run."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the front door knows the names and starts quickly
    from suite.records.schema import Source


class Backend(StrEnum):
    """Where points run."""

    LOCAL = "local"
    SLURM = "slurm"
    EMULATE = "emulate"
    SIMULATE = "simulate"

    @property
    def source(self) -> "Source":
        """What its records say of where they come from."""
        return "emulated" if self is Backend.EMULATE else "simulated" if self is Backend.SIMULATE else "measured"
