"""A point's times over revisions: its levels, and where they change."""

import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from suite.records.store import Problem, StoredRecord
from suite.regression.fingerprint import fingerprint_id
from suite.regression.launches import PointKey, PointLaunches, by_revision, point_label
from suite.regression.steps import LEAST_EFFECT, find_steps, levels

MOST_COMMITS = 20  # that are named at a step


@dataclass(frozen=True)
class Run:
    """All launches of one revision."""

    revision: str
    ended: str  # the last launch, ISO 8601
    log: float  # median over launches of the logarithm of the seconds of a token
    launches: int


@dataclass(frozen=True)
class Step:
    """A change of level between two runs that follow one another."""

    at: int  # the first run at the new level
    change: float  # relative; above 0 is slower
    before: str  # revisions
    after: str


@dataclass(frozen=True)
class Series:
    """A point on one kind of machine."""

    key: PointKey
    label: str
    machine: str  # the fingerprint's id
    runs: tuple[Run, ...]
    steps: tuple[Step, ...]

    @property
    def levels(self) -> list[float]:
        """The level of every segment between steps, a logarithm."""
        return levels([run.log for run in self.runs], [step.at for step in self.steps])


def histories(records: Iterable[StoredRecord], least: float = LEAST_EFFECT) -> tuple[list[Series], list[Problem]]:
    """Every point's series by kind of machine, with the steps of at least `least`, and records that are none."""
    points, problems = by_revision(records)
    series = []
    for key, revisions in points.items():
        machines: dict[str, list[PointLaunches]] = defaultdict(list)
        for one in revisions:
            if one.fingerprint is not None:
                machines[fingerprint_id(one.fingerprint)].append(one)
        series += [_series(key, machine, found, least) for machine, found in sorted(machines.items())]
    return series, problems


def _series(key: PointKey, machine: str, found: list[PointLaunches], least: float) -> Series:
    runs = tuple(
        Run(
            one.revision,
            one.launches[-1].record.finished,
            median(launch.level for launch in one.launches),
            len(one.launches),
        )
        for one in found
    )
    logs = [run.log for run in runs]
    places = find_steps(logs, least)
    heights = levels(logs, places)
    steps = tuple(
        Step(at, math.expm1(heights[number + 1] - heights[number]), runs[at - 1].revision, runs[at].revision)
        for number, at in enumerate(places)
    )
    return Series(key, point_label(found[-1].point), machine, runs, steps)


def commits_between(before: str, after: str) -> list[str]:
    """The commits, newest first, that `after` has and `before` has not; none where git does not know them here."""
    ends = f"{before.removesuffix('-dirty')}..{after.removesuffix('-dirty')}"
    command = ["git", "log", "--oneline", "--no-decorate", f"--max-count={MOST_COMMITS}", ends, "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
