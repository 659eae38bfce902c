"""What the engine itself takes for an action: actions that do nothing, on one rank, without messages."""

from suite.experiment.point import Schedule
from suite.measure.clock import HostClock
from suite.pipeline.engine import Engine
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove

MICROBATCHES = 500


class Idle:
    """Carries out nothing."""

    def run(self, action, value, final):
        return None

    def reduce(self, action):
        pass


def test_a_thousand_actions(benchmark):
    lowered = prove(generate(Schedule(name="1f1b"), 1, MICROBATCHES)).lowered
    clock = HostClock()
    engine = Engine(lowered, 0, Idle(), None, clock)

    def iteration():
        engine.run()
        clock.seconds()

    benchmark.pedantic(iteration, rounds=30, warmup_rounds=2)
    assert len(engine.executed) == 2 * MICROBATCHES
