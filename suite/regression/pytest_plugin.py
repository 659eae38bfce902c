"""A pytest plugin, loaded wherever the suite is installed: throughput tests in one line.

    def test_throughput(suite_point):
        suite_point("experiments/throughput.yaml")

measures every point of the experiment and fails where a launch does. `pytest --suite-baseline main` compares with the
baseline of that name too, and fails on a regression and on what cannot be compared; `--suite-save main` keeps one.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every run of pytest loads this module
    from suite.regression.comparison import Side

COMPARED_LAUNCHES = 8  # of a point, where there is a baseline to compare with


@dataclass(frozen=True)
class MeasuredPoint:
    """A point that was measured: medians over its launches."""

    point_id: str
    label: str
    seconds: float  # of an iteration
    tokens_per_second: float


SuitePoint = Callable[..., list[MeasuredPoint]]


class InconclusiveWarning(UserWarning):
    """Launches that say neither that something changed nor that it did not."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that decide what `suite_point` compares with and keeps."""
    group = parser.getgroup("suite", "throughput of 3D-parallel training")
    group.addoption("--suite-baseline", metavar="NAME", help="compare what suite_point measures with this baseline")
    group.addoption("--suite-save", metavar="NAME", help="keep what suite_point measures as this baseline")
    group.addoption("--suite-results", metavar="DIR", default="results/pytest", help="where its records go")
    group.addoption("--suite-strict", action="store_true", help="fail where a comparison is inconclusive")


@pytest.fixture
def suite_point(request: pytest.FixtureRequest) -> SuitePoint:
    """Measures an experiment and returns its points, for conditions of your own.

    `suite_point(experiment, *overrides, scale=None, on="local", launches=None, tolerance=None)`. Every launch is a
    process of its own. Fails the test where a point does not run, and as the options say.
    """
    option = request.config.getoption

    def measure(
        experiment: str,
        *overrides: str,
        scale: str | None = None,
        on: str = "local",
        launches: int | None = None,
        tolerance: str | None = None,
    ) -> list[MeasuredPoint]:
        count = launches or (COMPARED_LAUNCHES if option("--suite-baseline") or option("--suite-save") else 1)
        given = [*overrides, f"measure.launches={count}", *(["--scale", scale] if scale else [])]
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        folder = Path(option("--suite-results")) / f"{stamp}-{re.sub(r'[^0-9A-Za-z_]+', '-', request.node.name)}"
        side = _measured(["run", experiment, *given, "--on", on, "--fresh", "--json", "--results", str(folder)], folder)
        if option("--suite-baseline"):
            _compare(option("--suite-baseline"), side, folder, tolerance, option("--suite-strict"), request.node)
        if option("--suite-save"):
            from suite.regression.baseline import save_baseline

            save_baseline(option("--suite-save"), [one for found in side.points.values() for one in found])
        return _numbers(side)

    return measure


def _measured(arguments: Sequence[str], folder: Path) -> "Side":
    """Run the experiment; its launches, all of which have to be ok."""
    from suite.regression.process import run_suite
    from suite.regression.sides import NothingToCompareError, Scope, newest

    said = run_suite(arguments)
    try:
        side = newest("this run", [folder], Scope([folder]))
    except NothingToCompareError:
        pytest.fail(f"nothing was measured: {said}", pytrace=False)
    failed = [
        f"{one.label} {one.key.point_id}: {one.unusable[-1]}"
        for found in side.points.values()
        for one in found
        if one.unusable
    ]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)
    return side


def _compare(name: str, side: "Side", folder: Path, tolerance: str | None, strict: bool, node: pytest.Item) -> None:
    from suite.experiment.errors import BadInput
    from suite.regression.comparison import FINE, INCONCLUSIVE, compare
    from suite.regression.rules import read_rules, read_tolerance
    from suite.regression.sides import NothingToCompareError, Scope, sides_of
    from suite.regression.written import as_text

    key = next(one[-1].key for one in side.points.values())
    try:
        rules = read_rules(None, None if tolerance is None else read_tolerance(tolerance))
        baseline, _ = sides_of(name, str(folder), Scope([folder], key.experiment, key.scale))
    except (BadInput, NothingToCompareError, ValueError) as error:
        pytest.fail(f"not comparable: {error}", pytrace=False)
    wanted = {point: found for point, found in baseline.points.items() if point in side.points}
    found = compare(type(side)(baseline.name, wanted, baseline.problems), side, rules, date.today())
    text, code = as_text(found, strict=True), found.exit_code(strict=True)
    node.add_report_section("call", "suite", text)
    if code == INCONCLUSIVE and not strict:
        warnings.warn(InconclusiveWarning(text), stacklevel=2)
    elif code != FINE:
        pytest.fail(text, pytrace=False)


def _numbers(side: "Side") -> list[MeasuredPoint]:
    return [
        MeasuredPoint(
            one.key.point_id,
            one.label,
            seconds := median(launch.seconds for launch in one.launches),
            one.launches[-1].tokens / seconds,
        )
        for found in side.points.values()
        for one in found
    ]
