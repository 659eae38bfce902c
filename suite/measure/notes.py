"""What a rank is at, noted as it goes along; whoever watches the rank reads it."""

from typing import Protocol

PHASES = (
    "starting up",
    "comparing devices and links",
    "building the model",
    "preparing the microbatches",
    "waiting for the reduction of gradients",
    "reducing the loss and the gradient norm",
    "updating the weights",
    "saving or loading a checkpoint",
    "evaluating",
    "gathering the samples",
)


class Notes(Protocol):
    """Where notes go."""

    def note(self, code: int) -> None:
        """Instruction n of the rank's program begins (2n) or has its input (2n + 1)."""

    def note_phase(self, phase: str) -> None:
        """One of `PHASES` begins."""


class Unwatched:
    """Notes that nobody reads."""

    def note(self, code: int) -> None:
        """Nothing."""

    def note_phase(self, phase: str) -> None:
        """Nothing."""
