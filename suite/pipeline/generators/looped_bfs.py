"""Breadth-first pipeline parallelism, looped BFS (Lamy-Poirier 2022, arXiv:2211.05953)."""

from suite.pipeline.generators.columns import column, loop
from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def looped_bfs(stages: int, microbatches: int, chunks: int) -> Schedule:
    """All microbatches through a rank's first chunk, then its next; backwards in the opposite order.

    Bubble (p-1)(F+B+W)/v for m >= p, and (F+B+W)/v * (p-1 + (v-1)(p-m)) for m < p; every rank holds the activations
    of all m microbatches. What it buys is communication: each chunk's weights are used in one run of forwards and one
    of backwards. The backwards take the last microbatch first, as torch's do; ascending order changes neither number.
    """

    def program(rank: int) -> tuple[Action, ...]:
        mine = range(rank, stages * chunks, stages)
        actions: list[Action] = []
        for stage in mine:
            actions += column(FORWARD, stage, range(microbatches))
        for stage in reversed(mine):
            actions += column(BACKWARD, stage, reversed(range(microbatches)))
        return tuple(actions)

    programs = tuple(program(rank) for rank in range(stages))
    return Schedule("looped-bfs", stages, microbatches, chunks, (loop(stages, chunks),), programs)
