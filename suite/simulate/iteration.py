"""The prediction of one point's iteration on a hardware: the event simulation of its program with the stages' times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from suite.experiment.point import Point
from suite.model.sizes import rank_parameters
from suite.pipeline.generators import generate, placement
from suite.pipeline.program import Schedule
from suite.pipeline.timeline import Costs, Timeline, timeline
from suite.simulate.hardware import Hardware
from suite.simulate.stages import stages
from suite.simulate.update import optimizer, reduction, tied_embedding


@dataclass(frozen=True)
class Estimate:
    """Seconds of one iteration, and where the rank that ends last spends them."""

    seconds: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    times: Timeline | None = None


def estimate(point: Point, hardware: Hardware, schedule: Schedule | None = None) -> Estimate:
    """Simulate one iteration."""
    hosts = placement(point.schedule, point.parallel.pipeline)[0]
    every = stages(point, hardware, hosts)
    blocking = not hardware.software.overlap_messages
    costs = Costs(stages={(kind, n): s for n, stage in enumerate(every) for kind, s in stage.seconds(blocking).items()})
    schedule = schedule or generate(point.schedule, point.parallel.pipeline, point.microbatches)
    graph = schedule.graph
    table = costs.table(schedule)
    starts, ends = graph.times([table[action[0], action[1]] for action in graph.actions])
    counts = rank_parameters(point)
    done = [ends[graph.first[r + 1] - 1] for r in range(point.parallel.pipeline)]
    reduced = max(d + reduction(point, hardware, c) for d, c in zip(done, counts, strict=True))
    step = optimizer(point, hardware, max(counts)) * hardware.software.slowdown
    total = reduced + tied_embedding(point, hardware) + step
    return Estimate(total)
