"""ZB-H1 and ZB-H2: the backward in two parts, weight gradients where the pipeline would idle (Qi et al. 2023,
arXiv:2401.10241), and ZB-H1 over several chunks as torch.distributed.pipelining has it.

One rule with two functions of the rank: `ahead`, the forwards before the first B, and `lag`, how many microbatches W
stays behind B.
"""

from suite.pipeline.generators.columns import column, linear, loop
from suite.pipeline.generators.interleaved import in_groups
from suite.pipeline.program import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """Bubble (p-1) max(F, B, F+B-W) for m >= p, a third of 1F1B's at F=B=W; every rank holds min(p, m) microbatches.

    With m < p the bubble at F=B=W is 2p-1-m.
    """
    programs = tuple(_program(_linear(rank, microbatches), stages - rank, lag=rank) for rank in range(stages))
    return Schedule("zb-h1", stages, microbatches, 1, (linear(stages),), programs)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """Span bubble (p-1) max(0, F+B-2W) for m >= 2p-1; every rank holds min(2p-1, m) microbatches.

    No bubble at F=B=W where iterations are chained without a barrier; the makespan's is (p-1)F, no better than
    ZB-H1's. With m < 2p-1 the span bubble at F=B=W is 2p-1-m.
    """
    programs = tuple(
        _program(_linear(rank, microbatches), 2 * (stages - rank) - 1, lag=2 * rank) for rank in range(stages)
    )
    return Schedule("zb-h2", stages, microbatches, 1, (linear(stages),), programs)


def interleaved_zb(stages: int, microbatches: int, chunks: int, group: int | None = None) -> Schedule:
    """ZB-H1 in the interleaved schedule's order; ZB-H1 itself for one chunk.

    Bubble (p-1)(F+B-W)/v; every rank holds p microbatches' activations with groups of p.
    """
    size = group or stages

    def program(rank: int) -> tuple[Action, ...]:
        mine = range(rank, stages * chunks, stages)
        forwards, inputs, weights = (
            in_groups([column(kind, stage, range(microbatches)) for stage in order], size)
            for kind, order in ((FORWARD, mine), (INPUT_GRADIENT, mine[::-1]), (WEIGHT_GRADIENT, mine[::-1]))
        )
        return _program((forwards, inputs, weights), (chunks - 1) * size + stages - rank, lag=rank)

    programs = tuple(program(rank) for rank in range(stages))
    return Schedule("interleaved-zb", stages, microbatches, chunks, (loop(stages, chunks),), programs)


Columns = tuple[list[Action], list[Action], list[Action]]  # all of a rank's F, B and W, each in order


def _linear(rank: int, microbatches: int) -> Columns:
    forwards, inputs, weights = (
        column(kind, rank, range(microbatches)) for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
    )
    return forwards, inputs, weights


def _program(columns: Columns, ahead: int, lag: int) -> tuple[Action, ...]:
    """`ahead` forwards; then B, the W that is `lag` behind, and the next F in turn; then the remaining W."""
    forwards, inputs, weights = columns
    actions = forwards[:ahead]
    for index, action in enumerate(inputs):
        actions.append(action)
        if index >= lag:
            actions.append(weights[index - lag])
        if index + ahead < len(forwards):
            actions.append(forwards[index + ahead])
    return (*actions, *weights[max(0, len(inputs) - lag) :])
