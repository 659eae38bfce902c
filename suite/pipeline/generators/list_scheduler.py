"""A list scheduler under a limit on activations, for any times of actions and messages: the automatic scheduler of
zero-bubble pipelines (Qi et al. 2023, arXiv:2401.10241, section 3.1). ZB-1p is a cap of p, ZB-2p one of 2p."""

from fractions import Fraction
from math import lcm

from suite.pipeline.generators.alternating import alternating_programs
from suite.pipeline.generators.columns import loop
from suite.pipeline.generators.greedy import Durations, Limit, greedy_programs
from suite.pipeline.program import Schedule


def list_scheduled(
    stages: int,
    microbatches: int,
    chunks: int,
    cap: int | None,
    costs: tuple[float, float, float],
    latency: float,
    kept: float,
) -> Schedule:
    """An order for `costs` of F, B and W, where a message takes `latency` to arrive. Stage s is on rank s mod p.

    Each rank holds at most `cap` microbatches' activations (2p), of which B leaves the share `kept` for W. One F and
    one B in turn with W in the gaps, if there is one chunk and room for a microbatch of every stage. With less room
    that would wait for forwards that cannot come: then, and with several chunks, a rank starts what is ready, B before
    F before W. No closed form; with one chunk and `kept` 1 no order has a span bubble below
    (p-1)(F+B+2 latency) - (cap-1)W, which this one often reaches.
    """
    placement = loop(stages, chunks)
    limit = cap or 2 * stages
    durations, memory = _whole(costs, latency), _memory(limit, kept)
    if chunks == 1 and limit >= min(stages, microbatches):
        programs = alternating_programs(stages, microbatches, durations, memory)
    else:
        programs = greedy_programs(placement, microbatches, durations, memory)
    return Schedule("list", stages, microbatches, chunks, (placement,), programs)


def _whole(costs: tuple[float, float, float], latency: float) -> Durations:
    """The times as whole numbers in the same proportion, so that equal times compare equal."""
    exact = [Fraction(repr(float(time))) for time in (*costs, latency)]
    unit = lcm(*(time.denominator for time in exact))
    return Durations(*(int(time * unit) for time in exact))


def _memory(cap: int, kept: float) -> Limit:
    share = Fraction(repr(float(kept)))
    return Limit(cap * share.denominator, share.denominator, share.numerator)
