"""What the verdicts are worth on noise that is known: the tables of docs/regression.md.

`python -m suite.regression.false_alarms` prints them in two minutes, always the same. Every row of the first is a
rule on a machine, every number the share of trials with that verdict.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from suite.regression.noise import Noise
from suite.regression.paired import effect_of
from suite.regression.screening import goes_on
from suite.regression.steps import find_steps
from suite.regression.verdict import DEFAULT_TOLERANCE, Verdict, decide

TRIALS = 2000
CHANGES = (0.0, 0.02, 0.03, 0.05)
LAUNCH_DEVIATIONS = (0.003, 0.01, 0.03)
RUNS = 100  # of a history
SERIES = 200  # histories of a kind

Draws = Callable[[Noise, np.random.Generator, int, float], np.ndarray]


def verdicts(differences: np.ndarray) -> Counter[Verdict]:
    """The verdicts on trials of one point each [trials, pairs]."""
    return Counter(decide([effect_of(one)], [DEFAULT_TOLERANCE])[0].verdict for one in differences)


def two_stage(screened: np.ndarray, confirmed: np.ndarray) -> Counter[Verdict]:
    """The verdicts where only what the first pairs make suspect is measured again, and judged by the second alone."""
    chosen = [
        second if goes_on(decide([effect], [DEFAULT_TOLERANCE])[0], effect) else first
        for first, second in zip(screened, confirmed, strict=True)
        for effect in [effect_of(first)]
    ]
    return Counter(decide([effect_of(one)], [DEFAULT_TOLERANCE])[0].verdict for one in chosen)


def rule(name: str, deviation: float, pairs: int, change: float, trials: int = TRIALS) -> Counter[Verdict]:
    """The verdicts of a rule on a machine whose candidate is slower by `change`; drawn anew, always the same."""
    draw = np.random.default_rng([round(1e4 * deviation), pairs, round(1e4 * change), trials])
    noise, slower = Noise(deviation), float(np.log1p(change))
    if name == "ABBA":
        return verdicts(noise.differences(draw, trials, pairs, slower))
    if name == "blocks":
        return verdicts(noise.blocks(draw, trials, pairs, slower))
    first = noise.differences(draw, trials, SCREEN, slower)
    return two_stage(first, noise.differences(draw, trials, pairs, slower))


SCREEN = 6
RULES = (("ABBA", 7), ("ABBA", 8), ("ABBA", 12), ("screen, then ABBA", 8), ("blocks", 8))


def verdict_table() -> list[str]:
    """Markdown: of every rule and machine, REGRESSION / IMPROVEMENT / EQUIVALENT / INCONCLUSIVE in percent."""
    lines = ["| pairs | launch sd | " + " | ".join(f"{change:+.0%}" if change else "A/A" for change in CHANGES) + " |"]
    lines.append("|---|---|" + "---|" * len(CHANGES))
    for name, pairs in RULES:
        for deviation in LAUNCH_DEVIATIONS:
            found = (rule(name, deviation, pairs, change) for change in CHANGES)
            shares = (" / ".join(f"{100 * one[verdict] / TRIALS:.1f}" for verdict in Verdict) for one in found)
            lines.append(f"| {pairs} {name} | {deviation:.1%} | " + " | ".join(shares) + " |")
    return lines


def histories(kind: str, deviation: float, step: float) -> np.ndarray:
    """Series of runs with a step in the middle: independent, with 3 % of them longer by a fifth, or correlated."""
    draw = np.random.default_rng([len(kind), round(1e4 * deviation), round(1e4 * step)])
    values = draw.normal(0, deviation, (SERIES, RUNS))
    if kind == "spikes":
        values += np.log(1.2) * (draw.random((SERIES, RUNS)) < 0.03)
    if kind == "correlated":
        for run in range(1, RUNS):
            values[:, run] = 0.5 * values[:, run - 1] + np.sqrt(0.75) * values[:, run]
    values[:, RUNS // 2 :] += np.log1p(step)
    return values


def history_table(kinds: Sequence[str] = ("independent", "spikes", "correlated")) -> list[str]:
    """Markdown: how many histories without a step have one found, and of how many the step is found within 2 runs."""
    lines = ["| runs | sd | any step of A/A | +3 % found | +5 % found |", "|---|---|---|---|---|"]
    for kind in kinds:
        for deviation in (0.005, 0.01, 0.02):
            false = sum(bool(find_steps(one)) for one in histories(kind, deviation, 0.0))
            cells = [f"{100 * false / SERIES:.1f} %"]
            for step in (0.03, 0.05):
                right = sum(_found(find_steps(one)) for one in histories(kind, deviation, step))
                cells.append(f"{100 * right / SERIES:.0f} %")
            lines.append(f"| {kind} | {deviation:.1%} | " + " | ".join(cells) + " |")
    return lines


def _found(steps: Sequence[int]) -> bool:
    return any(abs(place - RUNS // 2) <= 2 for place in steps)


def main() -> None:
    """Print both tables."""
    print("\n".join([*verdict_table(), "", *history_table()]))


if __name__ == "__main__":
    main()
