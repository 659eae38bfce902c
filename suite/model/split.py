"""Which layers, or halves of layers, each virtual stage holds."""

import heapq
import itertools
from collections.abc import Iterable, Sequence

from suite.experiment.point import Model


def head_in_layers(model: Model) -> float:
    """Cost of the logits in layers: 2 h V over one layer's forward FLOPs per token, 8 h^2 + 4 h f + 4 s h."""
    h, f, s = model.hidden_size, model.ffn_hidden_size, model.seq_length
    return 2 * h * model.vocab_size / (8 * h * h + 4 * h * f + 4 * s * h)


def layer_split(model: Model, virtual_stages: int, split: Sequence[float] | None = None) -> list[range]:
    """The half layers of every virtual stage, in model order; each in exactly one.

    Half 2 n is layer n's attention, half 2 n + 1 its feed-forward part, each with its norm and residual.

    Without a `split` (layers per stage), layers stay whole, and those that divide are spread evenly, as the paper does.
    What does not divide is spread so that the costliest stage is as cheap as can be, the head being on the last stage;
    the embedding is a lookup and weighs nothing.
    """
    even, rest = divmod(model.layers, virtual_stages)
    counts = list(split or [even] * virtual_stages)
    if rest and not split:
        counts = [1] * virtual_stages
        costs = [(1.0, stage) for stage in range(virtual_stages - 1)]
        costs.append((1.0 + head_in_layers(model), virtual_stages - 1))  # cheapest first, as a heap
        for _ in range(model.layers - virtual_stages):
            cost, cheapest = costs[0]
            counts[cheapest] += 1
            heapq.heapreplace(costs, (cost + 1.0, cheapest))
    halves = [int(2 * count) for count in counts]
    ends = list(itertools.accumulate(halves))
    return [range(end - count, end) for end, count in zip(ends, halves, strict=True)]


def parts(halves: range) -> tuple[int, int]:
    """How many attention and how many feed-forward parts a stage has."""
    attentions = (halves.stop + 1) // 2 - (halves.start + 1) // 2
    return attentions, len(halves) - attentions


def layers_of(halves: range) -> dict[int, range]:
    """The layers of which a stage has both halves or one, with those that it has."""
    return {
        layer: range(max(halves.start, 2 * layer), min(halves.stop, 2 * layer + 2))
        for layer in range(halves.start // 2, (halves.stop + 1) // 2)
    }


def layer_counts(split: Iterable[range]) -> list[float]:
    """Layers per stage, as `schedule.split` has them."""
    return [len(halves) // 2 if len(halves) % 2 == 0 else len(halves) / 2 for halves in split]
