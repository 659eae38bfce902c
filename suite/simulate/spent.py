"""Seconds by what they were spent on."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Spent:
    """Seconds of a rank's work; `launch` is time in which the device waits for the host to issue kernels."""

    gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    launch: float = 0.0
    tensor_communication: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> "Spent":
        return Spent(*(factor * seconds for seconds in astuple(self)))

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(astuple(self))
