"""One forward and one backward in turn, weight gradients in the gaps: the list scheduler for one chunk per rank."""

from itertools import product

from suite.pipeline.generators.columns import column
from suite.pipeline.generators.greedy import Durations, Limit
from suite.pipeline.program import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action

_SHOWING = 4  # microbatches per stage that show which switches are best


def alternating_programs(
    stages: int, microbatches: int, durations: Durations, limit: Limit
) -> tuple[tuple[Action, ...], ...]:
    """The best of the few orders that the switches give: least span bubble, then least makespan.

    `limit` has room for min(p, m) microbatches. The switches are those of the warm-up, and whether W also runs in a gap
    shorter than itself that would make its rank the one that idled most. At most 4p microbatches show the best.
    """
    switches = product((False, True), repeat=2)
    warm_ups = dict.fromkeys(_ahead(stages, microbatches, durations, limit, *pair) for pair in switches)
    fewer = min(microbatches, _SHOWING * stages)
    orders = (_Order(fewer, durations, limit, ahead, eager) for ahead, eager in product(warm_ups, (False, True)))
    best = min(orders, key=lambda order: order.bubbles)
    if fewer < microbatches:
        best = _Order(microbatches, durations, limit, best.ahead, best.eager)
    return best.programs()


def _ahead(
    stages: int, microbatches: int, durations: Durations, limit: Limit, late: bool, even: bool
) -> tuple[int, ...]:
    """Forwards of each stage before its first B: as many as fit before it arrives, or `late` one more that delays it.

    Each stage has more than the next, so that a F is there when the next needs it: where the limit binds at least one
    more, or, `even`, each as many more as there is room for.
    """
    room, counts = limit.cap // limit.forward, []
    for behind in reversed(range(stages)):
        waited = behind * (durations.forward + durations.backward + 2 * durations.latency)
        fitting = 1 + (waited + (durations.forward - 1 if late else 0)) // durations.forward
        if microbatches > room:
            most = 1 + (room - 1) * behind // max(1, stages - 1) if even else room - (stages - 1 - behind)
            fitting = min(fitting, most)
        counts.append(min(fitting, microbatches))
    return tuple(counts)


class _Order:
    """`ahead` forwards, by stage; then one B and one F in turn; each rank's gaps are known and filled with W.

    W runs where the gap is as long as W, or `eager`; where F has no room otherwise; and at the end.
    """

    def __init__(
        self, microbatches: int, durations: Durations, limit: Limit, ahead: tuple[int, ...], eager: bool
    ) -> None:
        assert durations.weight_gradient is not None
        self.durations, self.limit, self.ahead, self.eager = durations, limit, ahead, eager
        self.microbatches, self.weight = microbatches, durations.weight_gradient
        stages = len(ahead)
        hop = durations.forward + durations.latency
        self.clocks = [stage * hop for stage in range(stages)]
        self.firsts = tuple(self.clocks)
        self.idle, self.most_idle = [0] * stages, 0
        self.held, self.pending = [0] * stages, [0] * stages  # memory, and weight gradients to be done
        self.kinds: list[list[str]] = [[] for _ in range(stages)]
        self._step([min(count, microbatches) for count in ahead])

    def _step(self, ahead: list[int]) -> None:
        """Microbatch by microbatch: all its B from the last stage on, and the F that follow them from the first on."""
        forward, backward, latency = self.durations.forward, self.durations.backward, self.durations.latency
        stages = len(ahead)
        sent = [[0] * self.microbatches for _ in range(stages + 1)]  # by stage: when its forwards' messages are there
        for stage, count in enumerate(ahead):
            for index in range(count):
                sent[stage + 1][index] = self._run(stage, FORWARD, sent[stage][index], forward) + latency
        for microbatch in range(self.microbatches):
            moment = sent[stages][microbatch] - latency  # the last stage's own
            for stage in reversed(range(stages)):
                moment = self._run(stage, INPUT_GRADIENT, moment, backward) + latency
            for stage, count in enumerate(ahead):
                index = microbatch + count
                if index < self.microbatches:
                    sent[stage + 1][index] = self._run(stage, FORWARD, sent[stage][index], forward) + latency
        for stage in range(stages):
            while self.pending[stage]:
                self._run_weight(stage)

    def _run(self, stage: int, kind: str, moment: int, duration: int) -> int:
        """Run F or B when it is there, at `moment`, with W before it as the rules say; returns its end."""
        if kind == FORWARD:
            while self.held[stage] + self.limit.forward > self.limit.cap:
                self._run_weight(stage)
            self.held[stage] += self.limit.forward
        else:
            self.held[stage] -= self.limit.forward - self.limit.kept
        clocks = self.clocks
        while (gap := moment - clocks[stage]) > 0:
            worse = gap >= self.weight or (self.eager and self.idle[stage] + gap > self.most_idle)
            if worse and self.pending[stage]:
                self._run_weight(stage)
                continue
            clocks[stage] = moment
            self.idle[stage] += gap
            self.most_idle = max(self.most_idle, self.idle[stage])
        if kind == INPUT_GRADIENT:
            self.pending[stage] += 1
        self.kinds[stage].append(kind)
        clocks[stage] += duration
        return clocks[stage]

    def _run_weight(self, stage: int) -> None:
        self.pending[stage] -= 1
        self.held[stage] -= self.limit.kept
        self.clocks[stage] += self.weight
        self.kinds[stage].append(WEIGHT_GRADIENT)

    @property
    def bubbles(self) -> tuple[int, int]:
        """Of the span, and of the makespan (but for what all orders have in common)."""
        return max(end - start for end, start in zip(self.clocks, self.firsts, strict=True)), max(self.clocks)

    def programs(self) -> tuple[tuple[Action, ...], ...]:
        """Every rank's actions, each kind in the order of microbatches."""
        return tuple(self._program(stage, kinds) for stage, kinds in enumerate(self.kinds))

    def _program(self, stage: int, kinds: list[str]) -> tuple[Action, ...]:
        actions = {
            kind: iter(column(kind, stage, range(self.microbatches)))
            for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
        }
        return tuple([next(actions[kind]) for kind in kinds])
