"""Synthetic launches: what a noisy machine does to the median iteration of a launch."""

from dataclasses import dataclass

import numpy as np

STEP_DEVIATION = 0.01  # of an iteration within its launch
STEP_CORRELATION = 0.5  # with the iteration before it
OUTLIERS = 0.02  # the share of iterations that take longer by half to three times
DRIFT = 0.002  # that the machine changes from launch to launch; a random walk
STEPS = 30


@dataclass(frozen=True)
class Noise:
    """A machine by the standard deviation of its launches, relative."""

    launches: float

    def levels(self, draw: np.random.Generator, trials: int, count: int) -> np.ndarray:
        """Logarithms of the median iteration times of `count` launches one after another, by trial [trials, count]."""
        walk = np.cumsum(draw.normal(0, DRIFT, (trials, count)), axis=1)
        own = draw.normal(0, self.launches, (trials, count))
        steps = np.empty((trials, count, STEPS))
        steps[..., 0] = draw.normal(0, STEP_DEVIATION, (trials, count))
        fresh = draw.normal(0, STEP_DEVIATION * np.sqrt(1 - STEP_CORRELATION**2), (trials, count, STEPS))
        for step in range(1, STEPS):
            steps[..., step] = STEP_CORRELATION * steps[..., step - 1] + fresh[..., step]
        late = draw.random((trials, count, STEPS)) < OUTLIERS
        steps += late * np.log(draw.uniform(1.5, 3, (trials, count, STEPS)))
        return walk + own + np.median(steps, axis=2)

    def differences(self, draw: np.random.Generator, trials: int, pairs: int, change: float = 0.0) -> np.ndarray:
        """ln(candidate / baseline) of pairs run as A B, B A, A B, ...; `change` is a logarithm [trials, pairs]."""
        levels = self.levels(draw, trials, 2 * pairs).reshape(trials, pairs, 2)
        turn = np.where(np.arange(pairs) % 2, -1, 1)
        return (levels[..., 1] - levels[..., 0]) * turn + change

    def blocks(self, draw: np.random.Generator, trials: int, pairs: int, change: float = 0.0) -> np.ndarray:
        """The same of launches run as A A A ... B B B ..., the first of one side beside the first of the other."""
        levels = self.levels(draw, trials, 2 * pairs)
        return levels[:, pairs:] - levels[:, :pairs] + change
