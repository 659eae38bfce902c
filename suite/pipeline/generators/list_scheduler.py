"""A list scheduler under a limit on activations, the heuristic of zero-bubble scheduling for any costs
(Qi et al. 2023, arXiv:2401.10241, section 3; their ZB-2p is a cap of 2p)."""

from fractions import Fraction
from math import lcm

from suite.pipeline.generators.columns import loop
from suite.pipeline.generators.greedy import Durations, greedy_programs
from suite.pipeline.program import Schedule


def list_scheduled(
    stages: int, microbatches: int, chunks: int, cap: int | None, costs: tuple[float, float, float]
) -> Schedule:
    """B first, then F if the rank holds less than `cap` microbatches' activations (2p), then W, oldest first.

    `costs` are those of F, B and W that the order is made for. Stage s is on rank s mod p. No closed form; every rank
    holds at most min(cap, m) microbatches.
    """
    placement = loop(stages, chunks)
    programs = greedy_programs(placement, microbatches, _whole(costs), cap or 2 * stages)
    return Schedule("list", stages, microbatches, chunks, (placement,), programs)


def _whole(costs: tuple[float, float, float]) -> Durations:
    """The costs as whole numbers in the same proportion, so that equal times compare equal."""
    exact = [Fraction(repr(float(cost))) for cost in costs]
    unit = lcm(*(cost.denominator for cost in exact))
    return Durations(*(int(cost * unit) for cost in exact))
