"""Results as Markdown."""

import math
from collections.abc import Sequence
from statistics import median

from benchmarks.engine.contenders import PAIR
from benchmarks.engine.results import QUIET, Gate, Result

HEADINGS = ("contender", "seconds", "/ pair", "efficiency", "of peak", "/ best of torch", "interval", "/ simulation")


def table(results: Sequence[Result]) -> str:
    """All matches, where the suite's iterations went, and the gates."""
    parts = [part for result in results for part in (_times(result), _splits(result))]
    return "\n\n".join([*parts, _gates([gate for result in results for gate in result.gates])]) + "\n"


def _times(result: Result) -> str:
    best, rows = result.best_torch, []
    for name, seconds in result.seconds.items():
        over = result.over(name, PAIR)
        row = [name, f"{median(seconds):.3f}", f"{over:.3f}", f"{1 / over:.1%}", f"{result.share_of_peak(name):.1%}"]
        if name in (best, PAIR):
            row += ["", ""]
        else:
            effect = result.effect(name, best)
            row += [f"{result.over(name, best):.3f}", f"{math.exp(effect.low):.3f} to {math.exp(effect.high):.3f}"]
        whole, actions = result.over_simulated.get(name, (0.0, 0.0))
        rows.append([*row, f"{whole:.3f} ({actions:.3f})" if whole else ""])
    layout = ",".join(map(str, result.match.layout))
    rounds = len(result.seconds[PAIR])
    said = (
        f"{rounds} rounds, which are the pairs of the intervals (95%). {PAIR}: {result.match.bound.ranks} processes of "
        "plain torch, each by itself with its part of the batch. / simulation: the iteration, and in brackets its "
        "actions, over the event simulation with the actions' own times."
    )
    if result.disturbed:
        said += f" DISTURBED: in {result.disturbed:.0%} of the turns other processes kept {QUIET:.0%} of a core busy."
    return f"### {result.match.name}: ({layout})\n\n{_markdown(HEADINGS, rows)}\n\n{said}"


def _splits(result: Result) -> str:
    """Milliseconds by rank."""
    splits = result.splits
    keys = list(dict.fromkeys(key for ranks in splits.values() for split in ranks for key in split))
    rows = [
        [name, str(rank), *(f"{1e3 * split[key]:.1f}" if key in split else "" for key in keys)]
        for name, ranks in splits.items()
        for rank, split in enumerate(ranks)
    ]
    return _markdown(("milliseconds of", "rank", *keys), rows)


def _gates(gates: Sequence[Gate]) -> str:
    return "\n".join(f"- {'holds' if gate.holds else 'FAILS'}: {gate.said}" for gate in gates)


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
