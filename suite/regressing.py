"""What `suite regress` does: check what was asked for, measure two worktrees in turns, show each launch, compare."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import typer

from suite.ending import DONE, INTERRUPTED, NOTHING_MEASURED, SOME_FAILED, print_skipped, refuse
from suite.experiment.catalogue import default_scale, load_cluster, load_experiment
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.records.schema import Source
from suite.regression.calibration import CALIBRATION_PAIRS, calibrated, keep, machine, read, why_not_gated
from suite.regression.comparison import Comparison
from suite.regression.gate import LEAST_PAIRS, gate, measured_in_full, plan
from suite.regression.launches import PointKey
from suite.regression.rules import Rules
from suite.regression.turns import Session, Turn
from suite.regression.worktree import changed, checked_out, commit
from suite.regression.written import as_text

DEFAULT_PAIRS = 8
STEADY_ITERATIONS = 30  # whose median is little moved by single ones


@dataclass(frozen=True)
class Asked:
    """What was asked for."""

    experiment: str
    overrides: Sequence[str]
    scale: str | None
    on: str
    candidate: str
    pairs: int | None
    rules: Rules
    folder: Path
    quiet: bool

    @property
    def source(self) -> Source:
        """What the records say of where they come from."""
        return "emulated" if self.on == "emulate" else "measured"


def regress_here(asked: Asked, base: str) -> Comparison:
    """Measure the base and the candidate, and compare them. Refuses what this machine is known not to resolve."""
    pairs = asked.pairs if asked.pairs is not None else DEFAULT_PAIRS
    if pairs < LEAST_PAIRS:
        why = f"the smallest p of {pairs} pairs is {1 / 2 ** max(pairs, 0):.4f}, above 0.01"
        refuse(f"--pairs {pairs}: {why}; {LEAST_PAIRS} would work")
    commits = commit(base), commit(asked.candidate)
    if commits[0] == commits[1]:
        refuse(f"--base {base}: it is the candidate, {commits[1]}; --calibrate compares a revision with itself")
    name, scale, points = _points(asked)
    _refuse_what_cannot_be_resolved(asked, name, scale, points, pairs)
    with _session(asked, name, scale, commits) as session:
        planned = plan(len(points), pairs)
        screened = f", screened with {planned.screen} pairs first" if planned.screen else ""
        _say(asked, f"{name} ({scale}): {commits[0]} against {commits[1]}, {len(points)} points{screened}")
        return gate(session, points, pairs, asked.rules, _teller(asked, planned.launches(len(points))), date.today())


def calibrate_here(asked: Asked, change: float) -> int:
    """Measure the candidate against itself and say what that resolves; the exit code."""
    pairs = asked.pairs if asked.pairs is not None else CALIBRATION_PAIRS
    if pairs < LEAST_PAIRS:
        refuse(f"--pairs {pairs}: fewer than {LEAST_PAIRS} do not know their spread; {CALIBRATION_PAIRS} would work")
    name, scale, points = _points(asked)
    with _session(asked, name, scale, (commit(asked.candidate),) * 2) as session:
        _say(asked, f"{name} ({scale}): {session.checkouts[0].revision} against itself, {len(points)} points")
        teller = _teller(asked, 2 * pairs * len(points))
        found = measured_in_full(session, points, pairs, asked.rules, teller, date.today())
    print_skipped(found.problems)
    known = calibrated(found)
    _say(asked, "\n" + as_text(found, strict=False) + "\n")
    for one in known:
        print(f"{one.label} {one.point_id}: {one.sentence(change, DEFAULT_PAIRS)}")
    if not known:
        print("nothing was calibrated: no point has launches on both sides", file=sys.stderr)
        return NOTHING_MEASURED
    print(f"kept for this machine ({machine()}): {keep(name, known)}")
    unsteady = any(one.told_apart for one in known)
    return SOME_FAILED if unsteady or len(known) < len(points) else DONE


def _points(asked: Asked) -> tuple[str, str, list[Point]]:
    """The experiment's name, the scale, and the points that can run; those that cannot are named."""
    experiment = load_experiment(asked.experiment)
    scale = asked.scale or default_scale(experiment)
    expansion = expand(experiment, scale, asked.overrides, asked.source)
    for planned in expansion.points:
        if not planned.valid:
            why = "; ".join(planned.reasons)
            print(f"invalid {planned.label} [{planned.point_id}]: {why}; it is left out", file=sys.stderr)
    points = [planned.point for planned in expansion.valid if planned.point is not None]
    if not points:
        refuse(f"{experiment.name} at scale {scale} has no valid point; nothing was started")
    if few := [point for point in points if point.measure.iterations < STEADY_ITERATIONS]:
        count = few[0].measure.iterations
        print(f"{count} iterations a launch: with {STEADY_ITERATIONS} or more a launch is steadier", file=sys.stderr)
    for point in points:
        if load_cluster(point.cluster).remote:
            refuse(
                f"cluster {point.cluster} is another machine, and nothing of it runs here; --scale laptop would work"
            )
    return experiment.name, scale, points


def _refuse_what_cannot_be_resolved(asked: Asked, name: str, scale: str, points: Sequence[Point], pairs: int) -> None:
    """A tolerance below this machine's noise gives no verdicts: it is refused before it costs anything."""
    try:
        known = {one.point_id: one for one in read(name) if one.machine == machine()}
    except ValueError as error:
        refuse(str(error))
    for point in points:
        tolerance = asked.rules.threshold(PointKey(name, scale, asked.source, point.id)).tolerance
        if point.id in known and (why := why_not_gated(known[point.id], tolerance, pairs)):
            refuse(why)
    unknown = sum(point.id not in known for point in points)
    if unknown:
        note = (
            f"{unknown} points are not calibrated on this machine; suite regress {asked.experiment} --calibrate would"
        )
        print(note, file=sys.stderr)


@contextlib.contextmanager
def _session(asked: Asked, name: str, scale: str, commits: tuple[str, str]) -> Iterator[Session]:
    """Both revisions checked out, and a new folder for what they measure; on an interrupt, where that lies."""
    if asked.candidate == "HEAD" and changed():
        print("what is not committed is not measured: the candidate is HEAD", file=sys.stderr)
    folder = asked.folder / name / datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    with checked_out(commits[0], "base") as base, checked_out(commits[1], "candidate") as candidate:
        try:
            yield Session(name, scale, asked.source, (base, candidate), asked.on, folder)
        except KeyboardInterrupt:
            print(f"interrupted: what was measured is kept in {folder}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def _say(asked: Asked, text: str) -> None:
    if not asked.quiet:
        print(text, flush=True)


def _teller(asked: Asked, launches: int) -> Callable[[Turn], None]:
    """Shows a launch that has ended. A second stage goes on counting past the launches of the first."""

    def tell(turn: Turn) -> None:
        point = turn.point
        what = f"{turn.side} {point.layout} {point.schedule_label} {point.id}"
        _say(asked, f"{turn.number}/{launches} {what} {turn.status}, {turn.seconds:.1f} s")

    return tell
