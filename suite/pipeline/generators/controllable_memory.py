"""V-Min, V-Half and V-ZB: schedules on a V of two chunks per rank made from a building block that bounds their memory
(Qi et al. 2024, arXiv:2405.15362).

The block says in which slot a microbatch has its F and B on each rank; `pulling` makes lists of it. All numbers are at
F=B=W and m >= 2p. The peak is the block's, about (lifespan of chunk 0 + lifespan of chunk 1)/6 chunks.
"""

from suite.pipeline.generators.columns import column, zigzag
from suite.pipeline.generators.pulling import orders
from suite.pipeline.program import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Schedule


def v_min(stages: int, microbatches: int) -> Schedule:
    """Peak floor((p+4)/3) microbatches per rank, a third of 1F1B's; span bubble up to 2p-2.5 (2p-3.5 if 3 divides p).

    Fragile: with unequal costs the bubble grows with m.
    """
    late = 2 if stages % 3 == 0 else 0
    block = [
        *range(2 * stages),
        *range(2 * stages + late, 3 * stages + late),
        *range(3 * stages + late, 4 * stages + late),
    ]
    return _schedule("v-min", stages, microbatches, block)


def v_half(stages: int, microbatches: int) -> Schedule:
    """Peak floor((p+2)/2) microbatches per rank; span bubble 1.5p-3.5 for even p >= 4 and 1.5p-2 for odd p >= 3."""
    late = 0 if stages % 2 else 3
    block = [
        *range(0, 2 * stages, 2),
        *range(2 * stages - 1, 3 * stages - 1),
        *range(3 * stages - 1 + late, 5 * stages - 1 + late, 2),
        *range(5 * stages - 1 + late, 6 * stages - 1 + late),
    ]
    return _schedule("v-half", stages, microbatches, block)


def v_zb(stages: int, microbatches: int) -> Schedule:
    """Peak p microbatches per rank; span bubble 0, and (p-1)/2 at m = p."""
    block = [
        *range(0, 4 * stages, 4),
        *range(4 * stages - 3, 6 * stages - 3, 2),
        *range(6 * stages - 4, 10 * stages - 4, 4),
        *range(10 * stages - 7, 12 * stages - 7, 2),
    ]
    return _schedule("v-zb", stages, microbatches, block)


def _schedule(name: str, stages: int, microbatches: int, block: list[int]) -> Schedule:
    there_and_back = [*range(2 * stages), *reversed(range(2 * stages)), *reversed(range(2 * stages))]
    kinds = [kind for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT) for _ in range(2 * stages)]
    actions = [
        iter(column(kind, stage, range(microbatches))) for kind, stage in zip(kinds, there_and_back, strict=True)
    ]
    programs = tuple(tuple(next(actions[place]) for place in order) for order in orders(block, stages, microbatches))
    return Schedule(name, stages, microbatches, 2, (zigzag(stages, 2),), programs)
