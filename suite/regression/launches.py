"""Launches by point: every usable launch is one number, and what is not usable has its reason."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from pydantic import ValidationError

from suite.experiment.point import Point
from suite.experiment.recorded import point_of, why_not_its_own, why_unreadable
from suite.records.schema import Source
from suite.records.store import Problem, StoredRecord
from suite.regression.fingerprint import Fingerprint, fingerprint

_NOT_ITS_FAULT = ("preempted", "cancelled", "skipped")


@dataclass(frozen=True)
class Launch:
    """A launch that ended well, as one number."""

    record: StoredRecord
    seconds: float  # median of the iterations after the warm-up
    tokens: int  # per iteration

    @property
    def level(self) -> float:
        """The logarithm of the seconds that a token takes."""
        return math.log(self.seconds / self.tokens)

    @property
    def begun(self) -> float:
        """When it began, in seconds since 1970."""
        return moment(self.record.started)


@dataclass(frozen=True)
class PointKey:
    """A point's place: numbers of different places are not compared."""

    experiment: str
    scale: str
    source: Source
    point_id: str


@dataclass(frozen=True)
class PointLaunches:
    """What a side has of a point: launches of one revision in the order in which they began, and those that failed."""

    key: PointKey
    point: Point
    revision: str
    launches: tuple[Launch, ...]
    unusable: tuple[str, ...]  # why the others of this revision give no number
    failed: str | None  # why the last launch failed; None where it did not, or was ended from outside

    @property
    def label(self) -> str:
        """The point in a few words."""
        return point_label(self.point)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """That of its launches; of the last one where they differ, None without any."""
        return fingerprint(self.launches[-1].record) if self.launches else None


def point_label(point: Point) -> str:
    """A point in a few words."""
    return f"{point.layout} {point.schedule_label} m={point.microbatches}"


def moment(text: str) -> float:
    """An ISO time in seconds since 1970; a time without a zone is UTC, an unreadable one is 0."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def launch_of(record: StoredRecord, point: Point) -> Launch | str:
    """The launch as a number, or why it gives none."""
    if record.status != "ok":
        return f"{record.status}: {(record.reason or 'no reason was recorded').splitlines()[0]}"
    kept = record.iterations.seconds[record.iterations.warmup :] if record.iterations else []
    if not kept:
        return "no iteration was timed"
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in kept):
        return "iteration times that are no positive numbers"
    return Launch(record, median(kept), point.training.global_batch * point.model.seq_length)


def by_revision(
    records: Iterable[StoredRecord],
) -> tuple[dict[PointKey, list[PointLaunches]], list[Problem]]:
    """Every point's launches by revision, the one that ended last at the end; and records that are none."""
    groups: dict[PointKey, dict[str, list[tuple[StoredRecord, Point]]]] = defaultdict(lambda: defaultdict(list))
    problems = []
    for record in records:
        try:
            point = point_of(record)
        except ValidationError as error:
            if record.status != "invalid":
                problems.append(Problem(record.file, why_unreadable(error)))
            continue
        if reason := why_not_its_own(record, point):
            problems.append(Problem(record.file, reason))
            continue
        key = PointKey(record.experiment, record.scale, record.source, record.point_id)
        groups[key][record.revision].append((record, point))
    return {key: _in_order(key, revisions) for key, revisions in sorted(groups.items(), key=_place)}, problems


def _place(item: tuple[PointKey, object]) -> tuple[str, str, str, str]:
    key = item[0]
    return key.experiment, key.scale, key.source, key.point_id


def _in_order(key: PointKey, revisions: dict[str, list[tuple[StoredRecord, Point]]]) -> list[PointLaunches]:
    newest = sorted(revisions.items(), key=lambda item: (max(moment(r.finished) for r, _ in item[1]), item[0]))
    return [_of_revision(key, revision, found) for revision, found in newest]


def _of_revision(key: PointKey, revision: str, found: Sequence[tuple[StoredRecord, Point]]) -> PointLaunches:
    ordered = sorted(found, key=lambda item: (moment(item[0].started), item[0].launch))
    results = [launch_of(record, point) for record, point in ordered]
    machine = next((fingerprint(one.record) for one in reversed(results) if isinstance(one, Launch)), None)
    results = [
        "measured on another machine than the last launch"
        if isinstance(one, Launch) and fingerprint(one.record) != machine
        else one
        for one in results
    ]
    last, status = results[-1], ordered[-1][0].status
    return PointLaunches(
        key,
        ordered[-1][1],
        revision,
        tuple(one for one in results if isinstance(one, Launch)),
        tuple(one for one in results if isinstance(one, str)),
        last if isinstance(last, str) and status not in _NOT_ITS_FAULT else None,
    )
