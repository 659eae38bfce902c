"""ZB-V: zero bubble at 1F1B's memory on a V of two chunks per rank (Qi et al. 2023, arXiv:2401.10241, section 6).

Chunk 0 of rank r is stage r and chunk 1 is stage 2p-1-r: the loss is computed where the microbatch came in.
"""

from itertools import islice

from suite.pipeline.generators.columns import column, zigzag
from suite.pipeline.program import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule


def zb_v(stages: int, microbatches: int) -> Schedule:
    """Span bubble 0 and makespan bubble (p-1)/2 at F=B=W for m >= 2p-1; every rank holds p microbatches' activations.

    With fewer microbatches the lists are those of 2p-1 without the ones that do not exist; the span bubble is then
    2p-1-m at F=B=W. With unequal costs it is about (p-1) times their spread.
    """
    enough = max(microbatches, 2 * stages - 1)
    programs = tuple(_program(rank, stages, enough) for rank in range(stages))
    if microbatches < enough:
        programs = tuple(tuple(a for a in program if a.microbatch < microbatches) for program in programs)
    return Schedule("zb-v", stages, microbatches, 2, (zigzag(stages, 2),), programs)


def _program(rank: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """The rank's list for at least 2p-1 microbatches; each kind takes the next microbatch of its chunk."""
    f0, f1, b0, b1, w0, w1 = (
        iter(column(kind, stage, range(microbatches)))
        for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
        for stage in (rank, 2 * stages - 1 - rank)
    )
    actions = [next(f0) for _ in range(2 * (stages - rank) - 1)]
    for _ in range(rank):
        actions += [next(f1), next(f0)]
    for _ in range(stages - rank):
        actions += [next(f1), next(b1), next(w1)]
    for _ in range(microbatches - stages):
        actions += islice(f0, 1)  # until there is none left
        actions += [next(b0), next(w0), next(f1), next(b1), next(w1)]
    for _ in range(rank):
        actions += [next(b0), next(b1)]
    for _ in range(stages - rank):
        actions += [next(b0), next(w0)]
    return (*actions, *w1, *w0)
