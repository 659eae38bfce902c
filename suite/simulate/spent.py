"""Seconds by what they were spent on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spent:
    """Seconds of a rank's work; `launch` is time in which the device waits for the host to issue kernels."""

    gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    launch: float = 0.0
    tensor_communication: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.gemm + other.gemm,
            self.attention + other.attention,
            self.elementwise + other.elementwise,
            self.launch + other.launch,
            self.tensor_communication + other.tensor_communication,
        )

    def __mul__(self, factor: float) -> "Spent":
        return Spent(**{name: factor * seconds for name, seconds in self.by_name().items()})

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.gemm + self.attention + self.elementwise + self.launch + self.tensor_communication

    def by_name(self) -> dict[str, float]:
        """Seconds by what they were spent on."""
        return dict(vars(self))


NOTHING = Spent()
