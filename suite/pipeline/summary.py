"""What `suite schedule` says of a proved schedule, and the forms in which it exports one."""

import shutil
import sys
from typing import Any

from suite.pipeline.drawing import as_csv, as_perfetto, as_svg, as_text
from suite.pipeline.program import Schedule
from suite.pipeline.proof import Proof
from suite.pipeline.timeline import Costs, Timeline
from suite.pipeline.torch_csv import as_torch_csv


def read_costs(text: str) -> Costs:
    """Costs from "F,B,W".

    Raises:
        ValueError: not three positive numbers.
    """
    try:
        forward, input_gradient, weight_gradient = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--cost {text}: three numbers F,B,W are needed; --cost 1,1,1 would work") from None
    if not all(0 < cost < float("inf") for cost in (forward, input_gradient, weight_gradient)):
        raise ValueError(f"--cost {text}: every cost must be a positive number; --cost 1,1,1 would work")
    return Costs(forward, input_gradient, weight_gradient)


def _title(schedule: Schedule) -> str:
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} microbatches{chunks}"


def summary_text(proof: Proof, times: Timeline) -> str:
    """The proof and the bubbles in words; times in units of one microbatch's F on one rank."""
    schedule = proof.lowered.schedule
    chunks = ", ".join(str(peak) for peak in proof.peak_chunks)
    unit = "chunks" if schedule.chunks > 1 else "microbatches"
    lines = [
        f"{_title(schedule)}: proved complete and free of deadlock",
        f"bubble {times.bubble_over_ideal:.6g} of ideal compute (makespan {times.makespan:.6g}, "
        f"busiest rank {times.work:.6g}, span bubble {times.bubble_span:.6g})",
        f"{unit} in flight at most, by rank: {chunks}",
    ]
    if schedule.chunks > 1:
        lines.append("in microbatches of a rank's share: " + ", ".join(f"{p:.4g}" for p in proof.peak_activations))
    return "\n".join(lines)


def summary_json(proof: Proof, times: Timeline) -> dict[str, Any]:
    """The same for `--json`."""
    schedule = proof.lowered.schedule
    return {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "makespan": times.makespan,
        "work": times.work,
        "bubble_over_ideal": times.bubble_over_ideal,
        "bubble_makespan": times.bubble_makespan,
        "bubble_span": times.bubble_span,
        "peak_activations": list(proof.peak_activations),
        "peak_chunks": list(proof.peak_chunks),
    }


def exported(form: str, schedule: Schedule, times: Timeline) -> str:
    """The schedule as text, svg, csv, torch-csv or perfetto."""
    if form == "svg":
        return as_svg(times, _title(schedule), schedule.chunks)
    if form == "csv":
        return as_csv(times)
    if form == "torch-csv":
        return as_torch_csv(schedule)
    if form == "perfetto":
        return as_perfetto(times.ranks)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return as_text(times, schedule.chunks, width)
