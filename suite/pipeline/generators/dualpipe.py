"""DualPipe and DualPipeV: forwards of one direction paired with backwards of the other (DeepSeek-AI 2024,
arXiv:2412.19437; DualPipeV is its cut in half, where the two chunks of a V are the two directions).

The papers run each pair {a|b} as one overlapped action; here a comes directly before b.
"""

from collections import deque

from suite.pipeline.generators.columns import column, linear, zigzag
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """Two replicas: stage s is on rank s in replica 0, on rank p-1-s in replica 1; microbatch i is of replica i mod 2.

    p and m are even, m >= 2p. As the pairs run one after the other and send each output at once, the makespan bubble is
    (p/2-1)/2 (FB + B' - 3W), where B' is the whole backward and FB = F+B': p/2-1 at F=B=W (the published formula, for
    pairs whose outputs both appear at their end, is twice that). Peak p+1 microbatches per rank, at two
    stages' weights; the ranks r and p-1-r add up their gradients.
    """
    down, up = linear(stages), tuple(reversed(range(stages)))
    half = stages // 2
    programs = []
    for rank in range(stages):
        replicas = [
            _Direction(stage, range(replica, microbatches, 2), replica)
            for replica, stage in enumerate((rank, stages - 1 - rank))
        ]
        near, far = replicas if rank < half else reversed(replicas)  # near: it comes in at this half's end
        programs.append(_program(min(rank, stages - 1 - rank), half, microbatches // 2, (near, far)))
    return Schedule("dualpipe", stages, microbatches, 1, (down, up), tuple(programs))


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """Direction 0 is chunk 0 (stage r), direction 1 chunk 1 (stage 2p-1-r); one copy of the weights.

    m >= 2p. The makespan bubble is half of the published (p-1)(FB + B' - 3W) in chunk costs, as for DualPipe: (p-1)/2
    at F=B=W. Peak p + 1/2 microbatches per rank (p for p=1).
    """
    programs = []
    for rank in range(stages):
        down, up = (_Direction(stage, range(microbatches)) for stage in (rank, 2 * stages - 1 - rank))
        programs.append(_program(rank, stages, microbatches, (down, up)))
    return Schedule("dualpipe-v", stages, microbatches, 2, (zigzag(stages, 2),), tuple(programs))


class _Direction:
    """The actions of one stage that a rank hosts; each kind takes the next microbatch."""

    def __init__(self, stage: int, microbatches: range, replica: int = 0) -> None:
        self.forward = iter(column(FORWARD, stage, microbatches, replica))
        # One iterator for both forms of the backward, so that either takes the microbatch after the other's last.
        self.backward = zip(
            column(BACKWARD, stage, microbatches, replica),
            column(INPUT_GRADIENT, stage, microbatches, replica),
            column(WEIGHT_GRADIENT, stage, microbatches, replica),
            strict=True,
        )


class _Rank:
    """Builds a rank's program."""

    def __init__(self, hosted: tuple[_Direction, _Direction]) -> None:
        self.hosted = hosted
        self.actions: list[Action] = []
        self.pending: deque[Action] = deque()

    def forward(self, direction: int) -> None:
        self.actions.append(next(self.hosted[direction].forward))

    def backward(self, direction: int, split: bool = False) -> None:
        whole, inputs, weights = next(self.hosted[direction].backward)
        self.actions.append(inputs if split else whole)
        if split:
            self.pending.append(weights)

    def weights(self) -> None:
        """The oldest weight gradient that is pending."""
        self.actions.append(self.pending.popleft())


def _program(x: int, ranks: int, microbatches: int, hosted: tuple[_Direction, _Direction]) -> tuple[Action, ...]:
    """The list of place `x` of `ranks` for so many microbatches in each direction."""
    rank, behind = _Rank(hosted), ranks - x - 1
    for _ in range(2 * behind):
        rank.forward(0)
    for _ in range(x + 1):
        rank.forward(0)
        rank.forward(1)
    for _ in range(behind):
        rank.backward(1, split=True)
        rank.weights()
        rank.forward(1)
    for _ in range(microbatches - 2 * ranks + x + 1):
        rank.forward(0)
        rank.backward(1)
        rank.forward(1)
        rank.backward(0)
    for _ in range(behind):
        rank.backward(1)
        rank.forward(1)
        rank.backward(0)
    for turn in range(2 * (x + 1)):
        rank.backward(1 - turn % 2, split=turn >= x + 1)
    for _ in range(behind):
        rank.weights()
        rank.backward(0, split=True)
    for _ in range(x + 1):
        rank.weights()
    return tuple(rank.actions)
