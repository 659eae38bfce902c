"""What `suite schedule` is asked for: schedules by name or from a file, and the measured timeline of a record."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from suite.experiment.errors import did_you_mean
from suite.experiment.point import Schedule as Options
from suite.pipeline.drawing import Panel
from suite.pipeline.exchange import read_schedule
from suite.pipeline.generators import GENERATORS, generate
from suite.pipeline.names import SCHEDULE_NAMES, default_chunks
from suite.pipeline.program import Schedule
from suite.pipeline.summary import (
    Predicted,
    exported,
    mean_costs,
    measured_title,
    predict,
    read_costs,
    summary_json,
    summary_text,
    times_json,
    title,
)
from suite.pipeline.timeline import Costs, Network, Timeline

FILE = "file"  # the name of the schedule that lies in a file
EQUAL = Costs()
PIPE_WIDTH = 200  # columns of a drawing in text that goes neither to a terminal nor to a file


@dataclass(frozen=True)
class Asked:
    """The command's options that say which schedules; None where the user gave none."""

    stages: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    group: int | None = None
    cap: int | None = None
    base: str | None = None
    file: Path | None = None
    kept: float | None = None


@dataclass(frozen=True)
class Measured:
    """The trace of a record: its timeline in seconds, and the point's schedule section."""

    path: Path
    source: str
    options: dict[str, Any]
    times: Timeline


def schedules(
    names: Sequence[str],
    asked: Asked,
    measured: Measured | None = None,
    costs: Costs = EQUAL,
    network: Network | None = None,
) -> list[Schedule]:
    """Every schedule by its name; sizes that are not given are those of the file or of the record.

    Of several schedules only those that have chunks, groups, a cap, a base or a kept share take the options for them.

    Raises:
        ValueError: an unknown name, sizes that do not suit, or a file that cannot be used; one sentence.
    """
    if asked.file and FILE not in names:
        raise ValueError(
            f"--file {asked.file}: the name of a schedule in a file is {FILE}; suite schedule {FILE} --file ..."
        )
    if not names:
        raise ValueError("no schedule is named; suite schedule 1f1b --stages 4 --microbatches 8 would work")
    found = _from_file(asked) if FILE in names else None
    if found:
        asked = replace(asked, stages=found.stages, microbatches=found.microbatches)
    several = len(names) > 1
    made_for = _made_for(costs, network)
    return [found if found and name == FILE else _generated(name, asked, measured, several, made_for) for name in names]


def _made_for(costs: Costs, network: Network | None) -> dict[str, Any]:
    """The options of a schedule that is made for the times that it is shown with."""
    message = sum(network.between(0, 1)) if network else 0.0
    return {"costs": (costs.forward, costs.input_gradient, costs.weight_gradient), "latency": message}


def _from_file(asked: Asked) -> Schedule:
    if asked.file is None:
        raise ValueError(f"schedule {FILE} needs --file PATH, a CSV of torch or a JSON of --format program-json")
    found = read_schedule(asked.file)
    for field in ("stages", "microbatches", "chunks"):
        given, there = getattr(asked, field), getattr(found, field)
        if given is not None and given != there:
            raise ValueError(f"--{field} {given}: the schedule in {asked.file} has {there}; leave --{field} out")
    return found


def _generated(name: str, asked: Asked, measured: Measured | None, several: bool, made_for: dict[str, Any]) -> Schedule:
    if name not in SCHEDULE_NAMES:
        raise ValueError(f"there is no schedule {name!r}; {did_you_mean(name, SCHEDULE_NAMES)}")
    stages, microbatches = asked.stages, asked.microbatches
    options: dict[str, Any] = {"name": name}
    if name == "list" or (name == "readiness" and asked.base == "list"):
        options = {**options, **made_for}
    if measured:
        stages, microbatches = stages or len(measured.times.ranks), microbatches or _microbatches(measured.times)
        options = measured.options if measured.options.get("name") == name else options
    if stages is None or microbatches is None:
        missing = "--stages" if stages is None else "--microbatches"
        raise ValueError(f"{missing} is missing; suite schedule {name} --stages 4 --microbatches 8 would work")
    if asked.chunks is not None and (not several or default_chunks(name) > 1):
        options = {**options, "chunks": asked.chunks}
    fields = GENERATORS[name].fields
    for field in ("group", "cap", "base", "kept"):
        value = getattr(asked, field)
        if value is not None and (not several or field in fields):
            options = {**options, field: value}
    chosen = Options.model_validate(options)
    return generate(chosen, stages, microbatches)


def _microbatches(times: Timeline) -> int:
    return 1 + max(span.action.microbatch for row in times.ranks for span in row)


def read_measured(path: Path) -> Measured:
    """The trace in a record.

    Raises:
        ValueError: the file is no record, or holds no trace that can be drawn.
        OSError: the file cannot be read.
    """
    from pydantic import ValidationError

    from suite.records.schema import Trace
    from suite.report.predicted import traced

    try:
        record = json.loads(path.read_bytes())
        point, found = record["point"], record["trace"]
        options, source = dict(point["schedule"]), str(record["source"])
    except (ValueError, RecursionError, LookupError, TypeError):
        raise ValueError(f"--trace {path}: is not the record of a launch; they lie under results/runs") from None
    if found is None:
        raise ValueError(f"--trace {path}: the record has no trace; measure.trace=true keeps one iteration's")
    try:
        trace = Trace.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"--trace {path}: trace.{where}: {problem['msg']}") from None
    for span in trace.spans:
        if not 0 <= span.start <= span.end:
            raise ValueError(f"--trace {path}: the trace has an action from {span.start} to {span.end} s")
    ranks = sorted({span.rank for span in trace.spans})
    if not ranks or ranks != list(range(len(ranks))):
        raise ValueError(f"--trace {path}: the trace has actions of ranks {ranks}; they count from 0 without gaps")
    return Measured(path, source, options, traced(trace))


def same_program(measured: Measured, schedule: Schedule) -> None:
    """Check that the record ran this schedule.

    Raises:
        ValueError: it ran another one; the first action that differs is named.
    """
    ran = [tuple(span.action for span in row) for row in measured.times.ranks]
    for rank, (mine, theirs) in enumerate(zip(schedule.programs, ran, strict=False)):
        differs = next(
            (place for place, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), None
        )
        if differs is not None or len(mine) != len(theirs):
            place = min(len(mine), len(theirs)) if differs is None else differs
            wanted, found = (str(row[place]) if place < len(row) else "nothing more" for row in (mine, theirs))
            raise ValueError(
                f"--trace {measured.path}: the record ran another schedule ({measured.options.get('name')}): rank "
                f"{rank}, position {place}: {found}, where {schedule.name} has {wanted}"
            )
    if len(ran) != len(schedule.programs):
        raise ValueError(
            f"--trace {measured.path}: the record ran {len(ran)} stages, and {schedule.name} has {schedule.stages}; "
            "leave --stages out"
        )


@dataclass(frozen=True)
class Drawing:
    """What one call of `suite schedule` shows."""

    shown: list[Predicted]
    measured: Measured | None

    @classmethod
    def of(
        cls, names: Sequence[str], asked: Asked, trace: Path | None, cost: str, network: Network | None = None
    ) -> Self:
        """Build, prove and time what is asked for; with a trace, at the mean times that the record measured.

        Without a name it is the schedule in the file, or the one that the record ran.

        Raises:
            ValueError: something cannot be done; one sentence.
            OSError: a file cannot be read.
        """
        measured = read_measured(trace) if trace else None
        if not names:
            names = [FILE] if asked.file else [str(measured.options.get("name"))] if measured else []
        if measured and len(names) > 1:
            raise ValueError(f"--trace {trace}: a record ran one schedule, but {len(names)} are named; name that one")
        costs = read_costs(cost)
        shown = []
        for schedule in schedules(names, asked, measured, costs, network):
            if measured:
                if schedule.cap is None:
                    same_program(measured, schedule)
                costs = mean_costs(measured.times, schedule.chunks)
            shown.append(predict(schedule, costs, network))
        return cls(shown, measured)

    @property
    def summary(self) -> str:
        """In words: all of a single schedule, a line each of several, which the drawing's titles repeat."""
        if len(self.shown) == 1:
            return summary_text(self.shown[0])
        return "\n".join(title(one) for one in self.shown)

    def as_json(self) -> Any:
        """The numbers: an object for one schedule, a list of them for several."""
        rows = [summary_json(one) for one in self.shown]
        if self.measured:
            rows[0]["measured"] = times_json(self.measured.times)
        return rows if len(rows) > 1 else rows[0]

    def exported(self, form: str, to_file: bool) -> str:
        """The drawing; text is cut at the terminal's width unless it goes to a file.

        Raises:
            ValueError: the form cannot hold what is shown.
        """
        width = None if to_file else shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
        return exported(form, self.shown, self._panel, width)

    @property
    def _panel(self) -> Panel | None:
        measured = self.measured
        return Panel(measured_title(measured.source, measured.times), measured.times) if measured else None
