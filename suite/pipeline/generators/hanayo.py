"""Hanayo: waves, chunks that go through the ranks there and back (Liu et al. 2023, arXiv:2308.15762).

The paper prints fixed lists; this is the rule that gives them their bubble: every rank starts a backward if one is
ready, else a forward, the oldest microbatch first, with at most p microbatches between forward and backward of its
first chunk. The order is that of F and the whole backward taking equally long.
"""

from suite.pipeline.generators.columns import zigzag
from suite.pipeline.generators.greedy import Durations, Limit, greedy_programs
from suite.pipeline.program import Schedule


def hanayo(stages: int, microbatches: int, chunks: int) -> Schedule:
    """w = v/2 waves with one copy of the model; neighbouring stages at a turn share a rank.

    With B' the whole backward: at F=B' the bubble is (p-1)(F+B')/(2w) for m a multiple of p. At B'=2F it is
    2(p-1)F/w for m = p, and grows with m. No rank holds more than min(p, m) microbatches' activations.
    """
    placement = zigzag(stages, chunks)
    programs = greedy_programs(placement, microbatches, Durations(forward=1, backward=1), Limit(stages))
    return Schedule("hanayo", stages, microbatches, chunks, (placement,), programs)
