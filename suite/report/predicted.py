"""What a record's traced iteration would have been if each action had taken its kind's mean time."""

from suite.experiment.point import Point
from suite.pipeline.generators import generate
from suite.pipeline.program import Action
from suite.pipeline.readiness import settled
from suite.pipeline.summary import mean_costs
from suite.pipeline.timeline import Span, Timeline, timeline
from suite.records.schema import Trace
from suite.report.ideal import MOST_SIMULATED


def traced(trace: Trace) -> Timeline:
    """The trace as a timeline in seconds, a row for each rank that has actions."""
    rows: dict[int, list[Span]] = {}
    for span in sorted(trace.spans, key=lambda span: (span.rank, span.start)):
        action = Action(span.kind, span.stage, span.microbatch, replica=span.replica)
        rows.setdefault(span.rank, []).append(Span(span.rank, action, span.start, span.end))
    return Timeline(tuple(tuple(row) for row in rows.values()))


def predicted(point: Point, ran: Timeline) -> Timeline | str:
    """The event simulation of the point's program with the mean seconds of each kind of action, or why there is none.

    Messages take no time. `readiness` is taken in the order that results.
    """
    if sum(map(len, ran.ranks)) > MOST_SIMULATED:
        return f"more than {MOST_SIMULATED:,} actions are not simulated"
    if point.schedule.name == "file":
        return "the file of the schedule may have changed since"
    try:
        schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
        programs = [tuple(span.action for span in row) for row in ran.ranks]
        wanted = list(schedule.programs)
        if schedule.cap is not None:  # what a rank ran is its own, the order is not
            programs, wanted = ([tuple(sorted(one)) for one in many] for many in (programs, wanted))
        if programs != wanted:
            return "it ran another program than the one that is generated now"
        costs = mean_costs(ran, schedule.chunks)
        return timeline(settled(schedule, costs), costs)
    except ValueError as error:
        return str(error)
