"""Two sides compared point by point."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from itertools import pairwise
from statistics import median

from suite.records.store import Problem
from suite.regression.fingerprint import differences
from suite.regression.launches import Launch, PointKey, PointLaunches
from suite.regression.paired import Effect, effect_of
from suite.regression.rules import Rules, Threshold, Waiver
from suite.regression.verdict import Decision, Verdict, decide

FINE, FAILED, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 4  # exit codes


class Standing(StrEnum):
    """How far a point could be compared."""

    COMPARED = "compared"
    FAILED = "failed"  # the candidate was to be measured and failed
    FAILED_ALIKE = "failed on both sides"
    NOT_COMPARABLE = "not comparable"
    UNMATCHED = "unmatched"  # one side does not have the point


@dataclass(frozen=True)
class Side:
    """One side of a comparison: of every point what there is, one or (of a baseline) one for every kind of machine."""

    name: str
    points: Mapping[Hashable, Sequence[PointLaunches]]
    problems: Sequence[Problem] = ()


@dataclass(frozen=True)
class Row:
    """One point of a comparison."""

    key: PointKey  # the candidate's, or the baseline's where that is all there is
    label: str
    standing: Standing
    threshold: Threshold
    reason: str = ""  # why it was not compared
    baseline: tuple[Launch, ...] = ()  # the launches in pairs
    candidate: tuple[Launch, ...] = ()
    effect: Effect | None = None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()
    waiver: Waiver | None = None

    @property
    def ratio(self) -> float | None:
        """The candidate's median time over the baseline's, per token."""
        if not self.baseline:
            return None
        sides = (median(one.seconds / one.tokens for one in side) for side in (self.candidate, self.baseline))
        return next(sides) / next(sides)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None where the point was not compared."""
        return self.decision.verdict if self.decision else None

    def waived(self, today: date) -> bool:
        """Whether a regression here is let pass today."""
        return self.waiver is not None and today <= self.waiver.until


@dataclass(frozen=True)
class Comparison:
    """All points of two sides."""

    baseline: str
    candidate: str
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]
    today: date

    def exit_code(self, strict: bool) -> int:
        """What the command ends with; a regression or failure weighs most, then what could not be compared."""
        standings = {row.standing for row in self.rows}
        if Standing.FAILED in standings or any(
            row.verdict is Verdict.REGRESSION and not row.waived(self.today) for row in self.rows
        ):
            return FAILED
        if Standing.COMPARED not in standings or standings & {Standing.NOT_COMPARABLE, Standing.UNMATCHED}:
            return NOT_COMPARABLE
        return INCONCLUSIVE if strict and any(row.verdict is Verdict.INCONCLUSIVE for row in self.rows) else FINE


def compare(baseline: Side, candidate: Side, rules: Rules, today: date, across: Collection[str] = ()) -> Comparison:
    """Match points and judge each; `across` are fields of the fingerprint that are meant to differ."""
    rows = []
    for key in dict.fromkeys([*baseline.points, *candidate.points]):
        before, after = baseline.points.get(key, ()), candidate.points.get(key, ())
        rows.append(_row(before, after[-1] if after else None, rules, across))
    _judge(rows)
    problems = tuple(sorted({*baseline.problems, *candidate.problems}))
    return Comparison(baseline.name, candidate.name, tuple(rows), problems, today)


def _row(before: Sequence[PointLaunches], after: PointLaunches | None, rules: Rules, across: Collection[str]) -> Row:
    """The point with its pairs, or why it has none."""
    known = after or before[-1]
    row = Row(
        known.key,
        known.label,
        Standing.NOT_COMPARABLE,
        rules.threshold(known.key),
        waiver=rules.waiver(known.key),
    )
    if after is None:
        return replace(row, standing=Standing.UNMATCHED, reason="the candidate does not have it")
    if not before:
        standing = Standing.FAILED if after.failed else Standing.UNMATCHED
        return replace(row, standing=standing, reason=after.failed or "the baseline does not have it")
    base = min(before, key=lambda one: len(_differences(one, after, across)))
    if after.failed:
        alike = base.failed is not None and not base.launches
        return replace(row, standing=Standing.FAILED_ALIKE if alike else Standing.FAILED, reason=after.failed)
    for side, name in ((base, "baseline"), (after, "candidate")):
        if not side.launches:
            return replace(row, reason=f"the {name} has no launch that can be used: {side.unusable[-1]}")
    if unlike := _differences(base, after, across):
        return replace(row, reason="; ".join(unlike))
    if {_samples(one) for one in base.launches} & {_samples(one) for one in after.launches}:
        return replace(row, reason="the same launches are on both sides")
    count = min(len(base.launches), len(after.launches))
    pairs = base.launches[:count], after.launches[:count]
    return replace(
        row, standing=Standing.COMPARED, baseline=pairs[0], candidate=pairs[1], notes=tuple(_notes(base, after, count))
    )


def _differences(base: PointLaunches, after: PointLaunches, across: Collection[str]) -> list[str]:
    if base.fingerprint is None or after.fingerprint is None:
        return []
    return differences(base.fingerprint, after.fingerprint, across)


def _samples(launch: Launch) -> tuple[object, ...]:
    """What two launches cannot have alike unless they are one; simulated ones take the same time always."""
    record = launch.record
    return record.started, record.finished, tuple(record.iterations.seconds if record.iterations else ())


def _notes(base: PointLaunches, after: PointLaunches, count: int) -> list[str]:
    """What a reader has to know of the pairs."""
    notes = []
    for side, name in ((base, "baseline"), (after, "candidate")):
        if side.unusable:
            notes.append(
                f"launches of the {name} that gave no number: {len(side.unusable)}, the last: {side.unusable[-1]}"
            )
        if len(side.launches) > count:
            notes.append(f"launches of the {name} without a partner: {len(side.launches) - count}")
    if base.key.source != "simulated" and not _interleaved(base.launches[:count], after.launches[:count]):
        notes.append("the sides were not measured in turns: a drift between them would look like a change")
    return notes


def _interleaved(base: Sequence[Launch], after: Sequence[Launch]) -> bool:
    """Whether each pair had ended before the next one began: A B, B A, ..."""
    pairs = list(zip(base, after, strict=True))
    return all(max(one.begun for one in pair) < min(one.begun for one in later) for pair, later in pairwise(pairs))


def _judge(rows: list[Row]) -> None:
    """Give every compared point its effect and its verdict; simulated times have no noise, and their ratio decides."""
    compared = [place for place, row in enumerate(rows) if row.standing is Standing.COMPARED]
    for place in compared:
        row = rows[place]
        logs = [after.level - before.level for before, after in zip(row.baseline, row.candidate, strict=True)]
        if row.key.source == "simulated":
            rows[place] = replace(row, effect=_exact(logs[-1]), decision=_exact_decision(logs[-1], row.threshold))
        else:
            rows[place] = replace(row, effect=effect_of(logs))
    tested = [place for place in compared if rows[place].decision is None]
    effects = [effect for place in tested if (effect := rows[place].effect)]
    decisions = decide(effects, [rows[place].threshold.tolerance for place in tested])
    for place, decision in zip(tested, decisions, strict=True):
        rows[place] = replace(rows[place], decision=decision)


def _exact(log: float) -> Effect:
    return Effect(1, log, log, log, 1.0, float(log <= 0), float(log >= 0), None)


def _exact_decision(log: float, threshold: Threshold) -> Decision:
    limit = math.log1p(threshold.tolerance)
    verdict = Verdict.REGRESSION if log >= limit else Verdict.IMPROVEMENT if log <= -limit else Verdict.EQUIVALENT
    return Decision(verdict, threshold.tolerance, 0.0)
