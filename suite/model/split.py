"""Which layers each virtual stage holds."""

import heapq
import itertools

from suite.experiment.point import Model


def head_in_layers(model: Model) -> float:
    """Cost of the logits in layers: 2 h V over one layer's forward FLOPs per token, 8 h^2 + 4 h f + 4 s h."""
    h, f, s = model.hidden_size, model.ffn_hidden_size, model.seq_length
    return 2 * h * model.vocab_size / (8 * h * h + 4 * h * f + 4 * s * h)


def layer_split(model: Model, virtual_stages: int, split: tuple[int, ...] | None = None) -> list[range]:
    """The layers of every virtual stage, in model order; each layer in exactly one.

    Without a `split` (layers per stage), layers that divide are spread evenly, as the paper does. What does not
    divide is spread so that the costliest stage is as cheap as can be, the head being on the last stage; the
    embedding is a lookup and weighs nothing.
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
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
