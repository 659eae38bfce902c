"""What `suite report` does: the report of each experiment, the page of a whole folder, or what was asked instead."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from suite.ending import DONE, NOTHING_MEASURED, SOME_FAILED, command_line, print_skipped, refuse
from suite.experiment.catalogue import experiments_in, load_experiment
from suite.experiment.errors import did_you_mean
from suite.report.claims.evidence import Evidence
from suite.report.claims.judge import claims_text, judge, summary
from suite.report.claims.listed import read_claims
from suite.report.explain import explain
from suite.report.metrics import ImpossibleEfficiencyError
from suite.report.page import write_report
from suite.report.paper.page import write_paper_page
from suite.report.selection import Selection, select
from suite.report.summary import launches_of
from suite.report.tables import text_table

PAPER = "paper"  # the folder of the experiments that reproduce the paper


@dataclass(frozen=True)
class Wanted:
    """What was asked for: experiments or folders of them, points by overrides and scale, and what to show of them."""

    names: Sequence[str]
    overrides: Sequence[str]
    scale: str | None
    explain: str | None  # a point's id
    claims: bool
    folders: Sequence[Path]  # of results
    out: Path

    @property
    def all_points(self) -> bool:
        """Whether nothing narrows the report down."""
        return not self.overrides and self.scale is None and self.explain is None


def report_on(wanted: Wanted) -> int:
    """Write, or print, what was asked for; the exit code."""
    if wanted.claims:
        if not wanted.all_points or list(wanted.names) not in ([], [PAPER]):
            refuse(f"--claims: it is of the whole paper; suite report --claims, or suite report {PAPER}, would work")
        return _claims(wanted.folders)
    if not wanted.names:
        refuse("a report is of an experiment; suite report quickstart " + " ".join(wanted.overrides) + " would work")
    if wanted.explain is not None and (len(wanted.names) > 1 or not wanted.explain.strip()):
        why = "it takes one experiment and a point's id, as the report's first column has it"
        refuse(f"--explain {wanted.explain!r}: {why}")
    measured = [_one(name, wanted) for name in wanted.names]
    return DONE if all(measured) else NOTHING_MEASURED


def _one(name: str, wanted: Wanted) -> bool:
    """The report of one experiment or of one folder; whether there was anything to report."""
    if members := experiments_in(name):
        if not wanted.all_points:
            refuse(f"{name}: a folder's page is of all its points; {next(iter(members))} takes overrides and options")
        return _whole_page(name, members, wanted)
    found = select(name, wanted.overrides, wanted.scale, wanted.folders)
    if found.left_out:
        print(f"{found.name}: records of other points left out: {found.left_out}", file=sys.stderr)
    if not found.records:
        print_skipped(found.problems)
        first = command_line("run", name, wanted.overrides)
        print(f"{found.name}: nothing was measured; {first} first", file=sys.stderr)
        return False
    with _possible():
        return _report(found, wanted.out / found.name) if wanted.explain is None else _explain(found, wanted.explain)


@contextmanager
def _possible() -> Iterator[None]:
    """Says which records claim more than 100 % of peak, and exits: nothing is reported of them."""
    try:
        yield
    except ImpossibleEfficiencyError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(SOME_FAILED) from None


def _report(found: Selection, folder: Path) -> bool:
    """Write one report and print its table; whether anything was measured."""
    written = write_report(
        *(found.title, found.records, found.problems, folder, found.schedules, found.experiment, found.points)
    )
    print_skipped(written.problems)
    print(text_table(written.table))
    print(f"\nreport: {folder / 'index.html'}")
    if not written.measured:
        print(f"{found.name}: nothing was measured; no launch has a timed iteration", file=sys.stderr)
    return written.measured


def _whole_page(name: str, members: Mapping[str, Path], wanted: Wanted) -> bool:
    """Write one page of all experiments in a folder and print what it shows; whether there is any record."""
    experiments, folder = {member: load_experiment(file) for member, file in members.items()}, wanted.out / name
    with _possible():
        written = write_paper_page(experiments, wanted.folders, folder)
    print_skipped(written.problems)
    print(written.accuracy.text())
    print(f"\n{summary(written.verdicts)}\nreport: {folder / 'index.html'}")
    if not written.records:
        print(f"{name}: nothing was run; suite run {name} --on simulate would", file=sys.stderr)
    return bool(written.records)


def _claims(folders: Sequence[Path]) -> int:
    """Print every claim of the paper with its verdict; the exit code."""
    experiments = {name: load_experiment(file) for name, file in experiments_in(PAPER).items()}
    with _possible():
        print(claims_text(judge(read_claims(), Evidence(experiments, folders))))
    return DONE


def _explain(found: Selection, point_id: str) -> bool:
    """Print how the numbers of a point's records come about; whether there is a record that can be explained."""
    chosen = [record for record in found.records if record.point_id.startswith(point_id)]
    if not chosen:
        ids = sorted({record.point_id for record in found.records})
        refuse(f"{found.name} has no record of point {point_id}; {did_you_mean(point_id, ids)}")
    launches, unreadable = launches_of(chosen)
    print_skipped([*found.problems, *unreadable])
    print("\n\n".join(explain(launch.record) for launch in launches))
    return bool(launches)
