"""`suite regress`: two revisions measured in turns, screened where there are many points, and compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from suite.experiment.point import Point
from suite.regression.comparison import Comparison, Row, Side, Standing, compare
from suite.regression.launches import PointKey, point_label
from suite.regression.planning import smallest_pairs
from suite.regression.rules import Rules
from suite.regression.screening import SCREEN_ABOVE, SCREEN_PAIRS, goes_on
from suite.regression.sides import NothingToCompareError, Scope, newest
from suite.regression.turns import Session, Turn
from suite.regression.verdict import ALPHA, FAMILY_ALPHA

LEAST_PAIRS = smallest_pairs(ALPHA)


@dataclass(frozen=True)
class Plan:
    """How points are measured: all in full, or screened first."""

    screen: int  # pairs; 0 where all are measured in full
    pairs: int

    def launches(self, points: int) -> int:
        """How many launches there are at least."""
        return 2 * points * (self.screen or self.pairs)


def plan(points: int, pairs: int) -> Plan:
    """The plan for a number of points; more pairs than asked for where Holm's limit needs them."""
    if points <= SCREEN_ABOVE:
        return Plan(0, _enough(points, pairs))
    return Plan(SCREEN_PAIRS, pairs)


def _enough(points: int, pairs: int) -> int:
    return max(pairs, smallest_pairs(min(ALPHA, FAMILY_ALPHA / points)))


def gate(
    session: Session, points: Sequence[Point], pairs: int, rules: Rules, tell: Callable[[Turn], None], today: date
) -> Comparison:
    """Measure and compare. With many points only those go on whose first pairs are suspect, with fresh pairs."""
    planned = plan(len(points), pairs)
    if not planned.screen:
        return measured_in_full(session, points, planned.pairs, rules, tell, today)
    first = _compared(session, session.measure(points, SCREEN_PAIRS, "screen", tell), points, rules, today)
    suspects = {
        row.key.point_id for row in first.rows if row.decision and row.effect and goes_on(row.decision, row.effect)
    }
    chosen = [point for point in points if point.id in suspects]
    rows = {row.key.point_id: _screened(row) for row in first.rows}
    problems = list(first.problems)
    if chosen:
        folders = session.measure(chosen, _enough(len(chosen), pairs), "confirm", tell)
        second = _compared(session, folders, chosen, rules, today)
        rows |= {row.key.point_id: row for row in second.rows}
        problems += second.problems
    return replace(first, rows=tuple(rows.values()), problems=tuple(problems))


def measured_in_full(
    session: Session, points: Sequence[Point], pairs: int, rules: Rules, tell: Callable[[Turn], None], today: date
) -> Comparison:
    """Measure all pairs of all points, and compare."""
    return _compared(session, session.measure(points, pairs, "pairs", tell), points, rules, today)


def _screened(row: Row) -> Row:
    if row.standing is not Standing.COMPARED:
        return row
    return replace(row, notes=(*row.notes, f"screened with {SCREEN_PAIRS} pairs, which show no sign of a change"))


def _compared(
    session: Session, folders: Sequence[Path], points: Sequence[Point], rules: Rules, today: date
) -> Comparison:
    """The comparison of both folders; a point that left no record on a side is unmatched there."""
    base, candidate = (
        _side(folder, checkout.revision) for folder, checkout in zip(folders, session.checkouts, strict=True)
    )
    found = compare(base, candidate, rules, today)
    known = {row.key.point_id for row in found.rows}
    absent = (_absent(session, point, rules) for point in points if point.id not in known)
    places = {point.id: place for place, point in enumerate(points)}
    rows = sorted([*found.rows, *absent], key=lambda row: places[row.key.point_id])
    return replace(found, rows=tuple(rows))


def _side(folder: Path, revision: str) -> Side:
    try:
        side = newest(str(folder), [folder], Scope([folder]))
    except NothingToCompareError:
        return Side(f"{revision} ({folder})", {})
    return replace(side, name=f"{revision} ({folder})")


def _absent(session: Session, point: Point, rules: Rules) -> Row:
    key = PointKey(session.experiment, session.scale, session.source, point.id)
    return Row(
        key, point_label(point), Standing.NOT_COMPARABLE, rules.threshold(key), reason="neither revision left a record"
    )
