"""Chimera: two replicas of the model in opposite directions through the same ranks (Li and Hoefler 2021,
arXiv:2107.06925)."""

from suite.pipeline.generators.columns import column, linear
from suite.pipeline.program import BACKWARD, FORWARD, Action, Schedule


def chimera(stages: int, microbatches: int) -> Schedule:
    """Units of p microbatches, half of them in each direction, one directly after the other.

    Stage s is on rank s in replica 0 and on rank p-1-s in replica 1; microbatch i is of replica i mod 2. p is even.

    With B' the whole backward: at F=B' the bubble is p-2 slots for m a multiple of p, and 2p-2-m for even m < p. At
    B'=2F it is (p-2)(m/p + 1)F: it grows with m and passes 1F1B's at m=4p (the paper's cures, forward doubling and
    backward halving, are not built in). Ranks hold from p/2+1 (the outer ones) to p (the inner ones) microbatches;
    every rank has the weights of two stages, and the ranks r and p-1-r add up their gradients.
    """
    down, up = linear(stages), tuple(reversed(range(stages)))
    programs = tuple(_program((rank, stages - 1 - rank), stages, microbatches) for rank in range(stages))
    return Schedule("chimera", stages, microbatches, 1, (down, up), programs)


def _program(hosted: tuple[int, int], stages: int, microbatches: int) -> tuple[Action, ...]:
    """A rank's actions, in the order of the slots that they have if F and the whole backward take one slot each.

    `hosted` is its stage in either replica; the directions never collide, as one has the even slots of a rank and the
    other the odd ones.
    """
    slots: dict[int, Action] = {}
    for replica, stage in enumerate(hosted):
        mine = range(replica, microbatches, 2)
        for forward, backward in zip(
            column(FORWARD, stage, mine, replica), column(BACKWARD, stage, mine, replica), strict=True
        ):
            unit, place = divmod(forward.microbatch, stages)
            enters = 2 * stages * unit + place - replica
            slots[enters + stage] = forward
            slots[enters + 2 * stages - 1 - stage] = backward
    return tuple(slots[slot] for slot in sorted(slots))
