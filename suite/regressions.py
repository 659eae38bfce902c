"""The commands that tell whether something became slower: compare, baseline, regress, history."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suite.ending import DONE, NOTHING_MEASURED, print_json, print_skipped, refuse

if TYPE_CHECKING:  # a command imports what it needs, so that each starts quickly
    from suite.regression.comparison import Comparison
    from suite.regression.rules import Rules

SESSIONS = Path("results/regressions")

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides that choose points of the experiment.")
]
ExperimentName = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A file, or the name of one under experiments/.")
]
OfExperiment = Annotated[
    str | None, typer.Option("--experiment", help="Only this experiment's points; needed to compare overrides.")
]
ScaleName = Annotated[str | None, typer.Option("--scale", help="Only this scale; for overrides laptop, if it exists.")]
Results = Annotated[
    list[Path] | None, typer.Option("--results", help="Folders in which revisions and overrides are looked up.")
]
Tolerance = Annotated[
    str | None,
    typer.Option("--tolerance", help="The change that matters, such as 2%; in place of the rules' default."),
]
RulesFile = Annotated[
    Path | None, typer.Option("--rules", help="Thresholds and waivers.", show_default="regression.yaml")
]
Strict = Annotated[bool, typer.Option("--strict", help="End with 4 where a point is inconclusive.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML there, a test case for every point.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Write a summary for a pull request there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


class TurnsOn(StrEnum):
    """Where `suite regress` runs points."""

    LOCAL = "local"
    EMULATE = "emulate"


def add_commands(app: typer.Typer) -> None:
    """Put the commands beside those that the app has."""
    for command in (compare, baseline, regress, history):
        app.command()(command)


def compare(
    baseline: Annotated[
        str,
        typer.Argument(metavar="BASELINE", help="A results folder, a baseline, a git revision, or an override."),
    ],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="The same, of what may have changed.")],
    overrides: Overrides = None,
    experiment: OfExperiment = None,
    scale: ScaleName = None,
    tolerance: Tolerance = None,
    rules_file: RulesFile = None,
    across: Annotated[
        list[str] | None,
        typer.Option("--across", help="A field of the fingerprint that is meant to differ, such as torch."),
    ] = None,
    strict: Strict = False,
    junit: Junit = None,
    markdown: Markdown = None,
    as_json: AsJson = False,
    results: Results = None,
) -> None:
    """Say of every point whether the candidate is slower, faster or the same, or what would tell."""
    from datetime import date

    from suite.chosen import results_folders
    from suite.regression import comparison
    from suite.regression.fingerprint import FIELDS
    from suite.regression.sides import NothingToCompareError, Scope, sides_of

    for field in across or ():
        if field not in FIELDS:
            refuse(f"--across {field}: no field of the fingerprint; {', '.join(FIELDS)} are")
    rules = _rules(rules_file, tolerance)
    scope = Scope(results_folders(results), experiment, scale, overrides or ())
    try:
        sides = sides_of(baseline, candidate, scope)
    except NothingToCompareError as error:
        print(f"nothing to compare: {error}", file=sys.stderr)
        raise typer.Exit(NOTHING_MEASURED) from None
    show(comparison.compare(*sides, rules, date.today(), across or ()), strict, as_json, junit, markdown)


def show(
    found: "Comparison", strict: bool, as_json: bool, junit: Path | None = None, markdown: Path | None = None
) -> None:
    """Print a comparison, write what was asked for, and end with its exit code."""
    from suite.regression import written

    print_skipped(found.problems)
    if as_json:
        print_json(written.as_json(found, strict))
    else:
        print(written.as_text(found, strict))
    if junit:
        junit.write_text(written.as_junit(found, strict), encoding="utf-8")
    if markdown:
        markdown.write_text(written.as_markdown(found, strict), encoding="utf-8")
    raise typer.Exit(found.exit_code(strict))


def baseline(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The baseline's name, such as main.")],
    experiment: ExperimentName,
    overrides: Overrides = None,
    scale: ScaleName = None,
    results: Results = None,
) -> None:
    """Keep every point's newest launches under a name, to compare with later; apart for every kind of machine."""
    from suite.chosen import results_folders
    from suite.regression.baseline import BASELINES, save_baseline
    from suite.regression.sides import NothingToCompareError, Scope, newest

    folders = results_folders(results)
    try:
        side = newest(", ".join(map(str, folders)), folders, Scope(folders, experiment, scale, overrides or ()))
    except NothingToCompareError as error:
        print(f"nothing to save: {error}", file=sys.stderr)
        raise typer.Exit(NOTHING_MEASURED) from None
    print_skipped(side.problems)
    points = [found for alternatives in side.points.values() for found in alternatives]
    copies = save_baseline(name, points)
    for one in points:
        what = f"{len(one.launches)} launches of {one.revision}" if one.launches else f"left out, {one.unusable[-1]}"
        print(f"{one.key.point_id} {one.label}: {what}")
    print(f"baseline {name}: {len(copies)} launches in {BASELINES / name}")
    raise typer.Exit(DONE if copies else NOTHING_MEASURED)


def regress(
    experiment: ExperimentName,
    overrides: Overrides = None,
    base: Annotated[str | None, typer.Option("--base", help="The revision to compare with, such as main.")] = None,
    candidate: Annotated[str, typer.Option("--candidate", help="The revision that may be slower.")] = "HEAD",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Compare the candidate with itself: what can this machine resolve?")
    ] = False,
    change: Annotated[str, typer.Option("--change", help="The change that --calibrate plans for.")] = "10%",
    pairs: Annotated[
        int | None, typer.Option("--pairs", help="Launches of either side.", show_default="8; to calibrate, 10")
    ] = None,
    on: Annotated[TurnsOn, typer.Option("--on", help="Where the points run.")] = TurnsOn.LOCAL,
    scale: Annotated[
        str | None, typer.Option("--scale", help="The experiment's scale; laptop where it exists.")
    ] = None,
    tolerance: Tolerance = None,
    rules_file: RulesFile = None,
    strict: Strict = False,
    junit: Junit = None,
    markdown: Markdown = None,
    as_json: AsJson = False,
    results: Annotated[Path, typer.Option("--results", help="The folder that sessions go to.")] = SESSIONS,
) -> None:
    """Measure two revisions of the suite in turns, here and now, and compare them."""
    from suite.regressing import Asked, calibrate_here, regress_here

    if calibrate == (base is not None):
        refuse(
            "--base: suite regress needs a revision to compare with, such as --base main; or --calibrate, and no base"
        )
    asked = Asked(
        *(experiment, overrides or [], scale, on.value, candidate),
        pairs=pairs,
        rules=_rules(rules_file, tolerance),
        folder=results,
        quiet=as_json,
    )
    if base is None:
        raise typer.Exit(calibrate_here(asked, _tolerance("--change", change)))
    show(regress_here(asked, base), strict, as_json, junit, markdown)


def history(
    experiment: ExperimentName,
    scale: ScaleName = None,
    least: Annotated[str, typer.Option("--least", help="The smallest step that is told.")] = "2%",
    as_json: AsJson = False,
    results: Results = None,
) -> None:
    """Show how each point's time went over revisions, where it changed its level, and which commits lie there."""
    from suite.chosen import results_folders
    from suite.history import history_of

    raise typer.Exit(history_of(experiment, scale, _tolerance("--least", least), results_folders(results), as_json))


def _rules(file: Path | None, tolerance: str | None) -> "Rules":
    from suite.regression.rules import read_rules

    return read_rules(file, None if tolerance is None else _tolerance("--tolerance", tolerance))


def _tolerance(option: str, text: str) -> float:
    from suite.regression.rules import read_tolerance

    try:
        return read_tolerance(text)
    except ValueError as error:
        refuse(f"{option} {error}")
