"""What `suite schedule` says of proved schedules, and the forms in which it draws and exports them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.pipeline.drawing import Panel, as_csv, as_perfetto, as_svg, as_text
from suite.pipeline.exchange import as_program_json
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Schedule
from suite.pipeline.proof import Proof, prove
from suite.pipeline.readiness import settled
from suite.pipeline.timeline import Costs, Link, Network, Timeline, critical_path, timeline
from suite.pipeline.torch_csv import as_torch_csv, as_torch_csv_comms

_LEAST_COST, _MOST_COST, _MOST_RATIO = 1e-6, 1e6, 1e4

_ALONE: dict[str, Callable[["Predicted"], str]] = {  # forms that hold one schedule
    "csv": lambda one: as_csv(one.times),
    "torch-csv": lambda one: as_torch_csv(one.schedule),
    "torch-csv-comms": lambda one: as_torch_csv_comms(one.proof.lowered),
    "program-json": lambda one: as_program_json(one.schedule),
}


@dataclass(frozen=True)
class Predicted:
    """A proved schedule and when its actions run."""

    proof: Proof
    times: Timeline

    @property
    def schedule(self) -> Schedule:
        """What was proved."""
        return self.proof.lowered.schedule


def predict(schedule: Schedule, costs: Costs, network: Network | None = None) -> Predicted:
    """Prove the schedule and time it; a readiness-driven one in the order that it takes at these costs.

    Raises:
        ScheduleError: the schedule must not run.
    """
    schedule = settled(schedule, costs, network)
    return Predicted(prove(schedule), timeline(schedule, costs, network))


def read_costs(text: str) -> Costs:
    """Costs from "F,B,W".

    Raises:
        ValueError: not three positive numbers of comparable size.
    """
    try:
        costs = tuple(float(part) for part in text.split(","))
        forward, input_gradient, weight_gradient = costs
    except ValueError:
        raise ValueError(f"--cost {text}: three numbers F,B,W are needed; --cost 1,1,1 would work") from None
    if not all(_LEAST_COST <= cost <= _MOST_COST for cost in costs):
        raise ValueError(
            f"--cost {text}: every cost must be a number from {_LEAST_COST:g} to {_MOST_COST:g}; "
            "--cost 1,1,1 would work"
        )
    if max(costs) > _MOST_RATIO * min(costs):
        raise ValueError(
            f"--cost {text}: the largest cost may be {_MOST_RATIO:g} times the smallest; --cost 1,1,1 would work"
        )
    return Costs(forward, input_gradient, weight_gradient)


def read_network(latency: float, transfer: float, overlap: bool) -> Network | None:
    """What messages cost, in the costs' unit of time; None where they cost nothing.

    Raises:
        ValueError: a time that is no number of a sensible size.
    """
    for name, value in (("latency", latency), ("transfer", transfer)):
        if not 0 <= value <= _MOST_COST:
            raise ValueError(f"--{name} {value}: it must be a number from 0 to {_MOST_COST:g}; --{name} 0.1 would work")
    if not latency and not transfer:
        return None
    return Network(1.0, Link(latency, 1 / transfer if transfer else float("inf")), overlap=overlap)


def mean_costs(measured: Timeline, chunks: int) -> Costs:
    """The mean time of each kind of action, as costs of a rank's whole share of a microbatch.

    A backward in one action counts half for each of its parts, which no prediction tells apart.

    Raises:
        ValueError: a kind of action took no time at all.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for row in measured.ranks:
        for span in row:
            times[span.action.kind].append(span.end - span.start)
    means = {kind: chunks * sum(of_kind) / len(of_kind) for kind, of_kind in times.items()}
    for kind, mean in means.items():
        if mean <= 0:
            raise ValueError(f"the actions of kind {kind} took no time at all; nothing can be predicted from that")
    half = means.get(BACKWARD, 0.0) / 2
    return Costs(means[FORWARD], means.get(INPUT_GRADIENT, half), means.get(WEIGHT_GRADIENT, half))


def _sizes(schedule: Schedule) -> str:
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} microbatches{chunks}"


def title(predicted: Predicted) -> str:
    """Name and sizes with bubble and peak, in one line."""
    peak = max(predicted.proof.peak_activations)
    bubble = predicted.times.bubble_over_ideal
    return f"{_sizes(predicted.schedule)}; bubble {bubble:.4g} of ideal compute, peak {peak:.4g} microbatches in flight"


def measured_title(source: str, times: Timeline) -> str:
    """The same for a measured timeline, whose peak is the program's."""
    return f"{source}; bubble {times.bubble_over_ideal:.4g} of the busiest rank's compute, {times.makespan:.4g} s"


def summary_text(predicted: Predicted) -> str:
    """The proof and the bubbles in words; times in units of one microbatch's F on one rank."""
    proof, times, schedule = predicted.proof, predicted.times, predicted.schedule
    chunks = ", ".join(str(peak) for peak in proof.peak_chunks)
    unit = "chunks" if schedule.chunks > 1 else "microbatches"
    lines = [
        f"{_sizes(schedule)}: proved complete and free of deadlock",
        f"bubble {times.bubble_over_ideal:.6g} of ideal compute (makespan {times.makespan:.6g}, "
        f"busiest rank {times.work:.6g}, span bubble {times.bubble_span:.6g})",
        f"{unit} in flight at most, by rank: {chunks}",
    ]
    if schedule.chunks > 1:
        lines.append("in microbatches of a rank's share: " + ", ".join(f"{p:.4g}" for p in proof.peak_activations))
    if any(proof.peak_deferred):
        lines.append("weight gradients deferred at most, by rank: " + ", ".join(map(str, proof.peak_deferred)))
    if schedule.replicas > 1:
        lines.append(f"{schedule.replicas} replicas of the weights; their gradients are summed over the pipeline")
    return "\n".join(lines)


def summary_json(predicted: Predicted) -> dict[str, Any]:
    """The same for `--json`."""
    proof, schedule = predicted.proof, predicted.schedule
    return {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        **times_json(predicted.times),
        "peak_activations": list(proof.peak_activations),
        "peak_chunks": list(proof.peak_chunks),
        "peak_deferred": list(proof.peak_deferred),
        "replicas": schedule.replicas,
        "critical_path": [str(span.action) for span in critical_path(schedule, predicted.times)],
    }


def times_json(times: Timeline) -> dict[str, float]:
    """The numbers of a timeline, predicted or measured."""
    return {
        "makespan": times.makespan,
        "work": times.work,
        "bubble_over_ideal": times.bubble_over_ideal,
        "bubble_makespan": times.bubble_makespan,
        "bubble_span": times.bubble_span,
    }


def exported(form: str, shown: Sequence[Predicted], measured: Panel | None, width: int | None) -> str:
    """The schedules, and the measured timeline under them, in a form; text lines are cut at `width`.

    Times are seconds where there is a measured timeline.

    Raises:
        ValueError: the form holds only one schedule and no measured timeline, or cannot express the schedule.
    """
    if form in _ALONE:
        if measured or len(shown) > 1:
            raise ValueError(f"--format {form} holds one schedule; text, svg and perfetto can show several timelines")
        return _ALONE[form](shown[0])
    panels = [Panel(title(one), one.times) for one in shown] + ([measured] if measured else [])
    unit, unit_seconds = (" s", 1.0) if measured else ("", 1e-3)
    if form == "svg":
        return as_svg(panels, unit)
    if form == "perfetto":
        return as_perfetto(panels, unit_seconds)
    return as_text(panels, width, unit)
