"""What a point's schedule costs at best: its bubble with given times of the actions, and its activations in flight."""

from dataclasses import dataclass
from functools import cache

from suite.experiment.pace import costs as pace_costs
from suite.experiment.point import Point, Schedule
from suite.pipeline.generators import GENERATORS, generate
from suite.pipeline.summary import predict
from suite.pipeline.timeline import Costs, Link, Network
from suite.records.schema import Record

MOST_SIMULATED = 200_000  # actions of a program that a report still simulates: about three seconds

FORMULA = "(p-1)/(v m)"
EQUAL = "simulation with F=B=W"
PACED = "simulation with the pace's F, B and W"

_NO_SPEED = "tokens/s and every other rate follow from these times and the schedule, and say nothing of a device"
GIVEN_TIMES = {  # by source, where nothing is computed: what its rates are
    "emulated": f"the point's pace gives the times of the actions, for which ranks wait; {_NO_SPEED}",
    "simulated": f"the point's pace gives the times of the actions, and no process runs; {_NO_SPEED}",
}
PACED_SOURCES = tuple(GIVEN_TIMES)


def times_are_given(record: Record) -> bool:
    """Whether the pace gave the times of the actions; a simulation of a device says what its time is made of."""
    return record.source in PACED_SOURCES and record.breakdown_seconds is None


_FORMULA_HOLDS = ("gpipe", "1f1b", "interleaved")  # the schedules that the paper's formula describes


@dataclass(frozen=True)
class Ideal:
    """A schedule without messages and noise; None wherever `reason` says why.

    `bubble` is relative to the work of the busiest rank, and `basis` says where it is from; `makespan` and `work` are
    those of the event simulation. `peaks` are the highest proved activations in flight by rank, in microbatches of a
    rank's whole share of the model.
    """

    bubble: float | None = None
    basis: str | None = None
    makespan: float | None = None
    work: float | None = None
    peaks: tuple[float, ...] | None = None
    reason: str | None = None


def ideal(point: Point, paced: bool) -> Ideal:
    """The ideal of the point's schedule: the paper's (p-1)/(v m) where it holds, or else the event simulation.

    The simulation takes the same time for F, B and W, or with `paced` that of the point's pace. `readiness` is taken in
    the order that results.
    """
    schedule, stages, microbatches = point.schedule, point.parallel.pipeline, point.microbatches
    if microbatches < 1:
        return Ideal(reason="no ideal bubble: there is no microbatch")
    costs = pace_costs(point.pace) if paced else Costs()
    simulated = _simulated(
        *(schedule, stages, microbatches), (costs.forward, costs.input_gradient, costs.weight_gradient)
    )
    if schedule.name in _FORMULA_HOLDS:
        bubble = (stages - 1) / (schedule.chunks * microbatches)
        return Ideal(bubble, FORMULA, peaks=simulated.peaks, reason=simulated.reason)
    if simulated.bubble is None:
        return simulated
    return Ideal(simulated.bubble, PACED if paced else EQUAL, simulated.makespan, simulated.work, simulated.peaks)


def predicted_seconds(point: Point, record: Record) -> float | None:
    """The event simulation of an emulated launch: with the point's pace, and its messages' measured latency.

    None elsewhere, and where the program is too long to simulate in a report.
    """
    arrival = (record.preflight or {}).get("arrival_seconds")
    if record.source != "emulated" or not isinstance(arrival, float):
        return None
    if actions_of(point.schedule, point.parallel.pipeline, point.microbatches) > MOST_SIMULATED:
        return None
    try:
        schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
        return predict(schedule, pace_costs(point.pace), Network(1.0, Link(arrival))).times.makespan
    except ValueError:
        return None


def actions_of(schedule: Schedule, stages: int, microbatches: int) -> int:
    """How many actions the schedule's program has at most, known without generating it."""
    kinds = 3 if GENERATORS[schedule.name].splits_backward else 2
    return kinds * stages * schedule.chunks * microbatches


@cache
def _simulated(schedule: Schedule, stages: int, microbatches: int, costs: tuple[float, float, float]) -> Ideal:
    missing = "no activations in flight" if schedule.name in _FORMULA_HOLDS else "no ideal bubble"
    if schedule.name == "file":
        return Ideal(reason=f"{missing}: the file of the schedule may have changed since")
    if actions_of(schedule, stages, microbatches) > MOST_SIMULATED:
        return Ideal(
            reason=f"{missing}: the program has more than the {MOST_SIMULATED:,} actions that a report simulates; "
            "suite schedule does"
        )
    try:
        found = predict(generate(schedule, stages, microbatches), Costs(*costs))
    except ValueError as error:
        return Ideal(reason=f"{missing}: {error}")
    times = found.times
    return Ideal(times.bubble_over_ideal, None, times.makespan, times.work, found.proof.peak_activations)
