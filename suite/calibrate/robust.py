"""Constants from measurements: least squares of relative deviations, of which single large ones count little."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_ROUNDS = 60  # at most
_THERE = 1e-12  # a step of a logarithm after which there is nothing more to find
_STEP = 1e-4  # of a logarithm, for derivatives
_FARTHEST = 0.7  # that a logarithm moves in a round
_SMALL = 0.05  # deviation below which squares count, above which distances do


class Unknown(NamedTuple):
    """A constant that is looked for, where to begin, and between which values it makes sense."""

    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Fitted:
    """The constants, and by how much every prediction is above (or below) its measurement, as a logarithm."""

    values: dict[str, float]
    deviations: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median deviation, whichever way."""
        return float(np.median(np.abs(self.deviations)))

    @property
    def most(self) -> float:
        """What nine of ten deviations do not exceed."""
        return float(np.quantile(np.abs(self.deviations), 0.9))


def fit(
    predict: Callable[[dict[str, float]], Sequence[float]],
    measured: Sequence[float],
    unknowns: Mapping[str, Unknown],
) -> Fitted:
    """The constants with which `predict` comes closest to what was measured, all of it positive."""
    names, target = list(unknowns), np.log(np.asarray(measured, dtype=float))
    low, high = (np.log([getattr(unknowns[name], end) for name in names]) for end in ("low", "high"))

    def deviations(place: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(place).tolist(), strict=True))
        return np.log(np.asarray(predict(values), dtype=float)) - target

    def cost(off: np.ndarray) -> float:
        return float(np.sqrt(off**2 + _SMALL**2).sum())

    place = np.clip(np.log([unknowns[name].start for name in names]), low, high)
    off, damping = deviations(place), 1e-3
    for _ in range(_ROUNDS):
        slopes = np.stack([(deviations(place + _STEP * one) - off) / _STEP for one in np.eye(len(names))], axis=1)
        weights = 1 / np.sqrt(off**2 + _SMALL**2)
        normal = slopes.T @ (slopes * weights[:, None])
        damped = normal + damping * np.diag(np.diag(normal) + 1e-9)
        # Not `solve`: few samples may not tell two constants apart.
        step = -np.linalg.lstsq(damped, slopes.T @ (weights * off), rcond=None)[0]
        trial = np.clip(place + np.clip(step, -_FARTHEST, _FARTHEST), low, high)
        if np.abs(trial - place).max() < _THERE:
            break
        there = deviations(trial)
        if cost(there) < cost(off):
            place, off, damping = trial, there, damping / 3
        else:
            damping *= 10
    return Fitted(dict(zip(names, np.exp(place).tolist(), strict=True)), tuple(off.tolist()))
