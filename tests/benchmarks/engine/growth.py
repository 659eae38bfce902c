"""What the engine takes of an iteration as ranks, microbatches and chunks grow.

Emulated, so that any number of ranks fits: they wait for as long as an action would take. What passes between an
iteration's actions and waits is the engine's own: Python, posting receives, starting sends. It is measured with actions
that take no time, and with actions of 4 ms, through which the ranks sleep: their cores' caches have then cooled down,
as they have after real work. Run with `make bench-growth`.
"""

from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.crew import crew
from benchmarks.engine.suite_side import between
from benchmarks.engine.turns import Step

from suite.experiment.point import Point
from suite.measure.notes import Unwatched
from suite.parallel.topology import build_topology
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.training.paced import PacedStep

LIMIT = 150e-6  # seconds an action, at eight ranks, with actions that take no time
ROUNDS = 7
GROWTH_LIMIT = 1.25  # most that an action's overhead may be with many microbatches, over that with few
NO_TIME, SOME_TIME = 1e-9, 0.004  # seconds of an action of a rank's whole share


def emulated(pipeline: int, microbatches: int, chunks: int, seconds: float) -> Point:
    """A pipeline whose actions take so long, of a rank's whole share."""
    return Point.model_validate(
        {
            "model": {"layers": pipeline * chunks, "hidden_size": 64, "heads": 4, "vocab_size": 256, "seq_length": 64},
            "parallel": {"pipeline": pipeline},
            "schedule": {"name": "interleaved", "chunks": chunks} if chunks > 1 else {"name": "1f1b"},
            "training": {"global_batch": microbatches, "microbatch": 1},
            "pace": dict.fromkeys(("forward", "input_gradient", "weight_gradient"), seconds),
        }
    )


def paced_step(point: Point) -> Step:
    """This rank's iteration; it says how many seconds passed between its actions and waits, for each action."""
    schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
    topology = build_topology(point.parallel, "cpu", schedule.placement)
    step = PacedStep(point, prove(schedule).lowered, topology, Unwatched())

    def run(iteration: int) -> tuple[float, dict[str, float]]:
        samples = step.run(iteration)
        return 0.0, {"seconds": between(samples) / len(samples.actions)}

    return run


def overhead(point: Point) -> float:
    """Seconds an action, the median over ranks and rounds."""
    with crew(point.parallel.ranks, _counted, paced_step, point) as work:
        work()
        return median(one["seconds"] for _ in range(ROUNDS) for one in work())


def _counted(setup: Callable[[Point], Step], point: Point) -> Callable[[], dict[str, float]]:
    step = setup(point)
    return lambda: step(0)[1]


def _sizes() -> Iterator[tuple[int, int, int]]:
    yield from ((p, 4 * p, 1) for p in (2, 4, 8, 16, 32))
    yield from ((8, m, 1) for m in (8, 64, 128, 256))
    yield from ((8, 32, v) for v in (2, 4))


def main() -> int:
    """Print the table; 1 where the engine takes more than it may."""
    found = {}
    print("Microseconds an action of the engine's own, where actions take no time, and where they take 4 ms\n")
    print("| p | m | v | actions of a rank | no time | 4 ms |\n|---:|---:|---:|---:|---:|---:|")
    for p, m, v in _sizes():
        seconds = [overhead(emulated(p, m, v, length)) for length in (NO_TIME, SOME_TIME)]
        found[p, m, v] = seconds[0]
        print(f"| {p} | {m} | {v} | {2 * m * v} | {seconds[0] * 1e6:.0f} | {seconds[1] * 1e6:.0f} |", flush=True)
    at_eight = max(seconds for (p, _, _), seconds in found.items() if p == 8)
    growth = found[8, 256, 1] / found[8, 32, 1]
    print(f"\nat p=8 at most {at_eight * 1e6:.0f} microseconds an action; at most {LIMIT * 1e6:.0f}")
    print(f"with 256 microbatches {growth:.2f} times what it is with 32; at most {GROWTH_LIMIT}")
    return 0 if at_eight <= LIMIT and growth <= GROWTH_LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
