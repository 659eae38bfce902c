"""The front door: parses, calls, prints."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suite import __version__
from suite.ending import (
    DONE,
    INTERRUPTED,
    NOTHING_MEASURED,
    SOME_FAILED,
    command_line,
    print_skipped,
    refuse,
    to_the_end,
)
from suite.folders import RUNS, results_folders
from suite.pipeline.names import SCHEDULE_NAMES
from suite.regressions import add_commands

if TYPE_CHECKING:  # a command imports what it needs, so that each starts quickly
    from suite.experiment.expansion import Expansion
    from suite.experiment.spec import Experiment
    from suite.records.schema import Source

app = typer.Typer(
    help="A reproducible benchmark and scaling-study suite for 3D-parallel GPT training.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
add_commands(app)


class Backend(StrEnum):
    """Where points run."""

    LOCAL = "local"
    EMULATE = "emulate"
    SIMULATE = "simulate"

    @property
    def source(self) -> "Source":
        """What its records say of where they come from."""
        return "emulated" if self is Backend.EMULATE else "simulated" if self is Backend.SIMULATE else "measured"


class Format(StrEnum):
    """What `suite schedule` prints."""

    TEXT = "text"
    SVG = "svg"
    CSV = "csv"
    TORCH_CSV = "torch-csv"
    TORCH_CSV_COMMS = "torch-csv-comms"
    PROGRAM_JSON = "program-json"
    PERFETTO = "perfetto"


ExperimentName = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A file, or the name of one under experiments/.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as model.layers=8 or schedule=\\[gpipe,1f1b]."),
]
ScaleName = Annotated[str | None, typer.Option("--scale", help="The experiment's scale; laptop where it exists.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="A cluster profile, instead of the experiment's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Results = Annotated[list[Path] | None, typer.Option("--results", help="Results folders to read; several are merged.")]
RunResults = Annotated[Path, typer.Option("--results", help="The folder that records go to.")]


def main() -> None:
    """Run the command line."""
    to_the_end(app)


def _records(folders: Sequence[Path], name: str, scale: str, source: "Source") -> tuple[list[Any], list[Any]]:
    """The records of the sweep's points, and the files that are none."""
    from suite.experiment.recorded import own
    from suite.records.store import read_stores

    stored, problems = read_stores(folders, name, scale, source)
    records, edited = own(stored)
    return records, sorted([*problems, *edited])


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def _expanded(
    name: str,
    overrides: list[str] | None,
    scale: str | None,
    cluster: str | None,
    on: Backend = Backend.LOCAL,
) -> "tuple[Experiment, str, Expansion]":
    from suite.experiment.catalogue import default_scale, load_experiment
    from suite.experiment.expansion import expand

    experiment = load_experiment(name)
    simulated_at = "paper" if on is Backend.SIMULATE and "paper" in experiment.scales else None
    chosen = scale if scale is not None else simulated_at or default_scale(experiment)
    given = [*(overrides or []), *([f"cluster={cluster}"] if cluster else [])]
    return experiment, chosen, expand(experiment, chosen, given, on.source)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    experiment: ExperimentName,
    overrides: Overrides = None,
    on: Annotated[Backend, typer.Option("--on", help="Where the points run.")] = Backend.LOCAL,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is there already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    as_json: AsJson = False,
    results: RunResults = RUNS,
) -> None:
    """Run every point that is missing; each launch leaves one record. A folder's name stands for all in it."""
    from suite.experiment.catalogue import experiments_in

    members = experiments_in(experiment)
    if not members:
        raise typer.Exit(_run(experiment, overrides, on, scale, cluster, fresh, dry_run, as_json, results))
    if as_json:
        refuse(f"--json: it takes one experiment, and {experiment} is a folder; {next(iter(members))} would work")
    codes = (_run(name, overrides, on, scale, cluster, fresh, dry_run, False, results) for name in members)
    raise typer.Exit(max(codes))


def _run(
    experiment: str,
    overrides: list[str] | None,
    on: Backend,
    scale: str | None,
    cluster: str | None,
    fresh: bool,
    dry_run: bool,
    as_json: bool,
    results: Path,
) -> int:
    """Run one experiment's missing points; the exit code."""
    from suite.console import first_line, out, styled
    from suite.console import label as point_label
    from suite.launch.sweep import todo

    found, chosen, expansion = _expanded(experiment, overrides, scale, cluster, on)
    records, problems = _records(results_folders([results]), found.name, chosen, on.source)
    work = todo(expansion.points, records, fresh)
    print_skipped(problems)
    for planned in work.invalid:
        print(f"invalid {planned.label} [{planned.point_id}]: {'; '.join(planned.reasons)}", file=sys.stderr)
    for point, why in work.elsewhere:
        print(f"not present {point.layout} {point.schedule_label} [{point.id}]: its record was {why}", file=sys.stderr)
    if not expansion.valid:
        refuse(f"{found.name} at scale {chosen} has no valid point; nothing was started")
    if on is not Backend.SIMULATE:
        _refuse_remote([planned.point for planned in expansion.valid], on)
    if not as_json:
        out.print(
            f"{found.name} ({chosen}): {work.launches} launches to run, {len(work.present)} points present, "
            f"{len(work.invalid)} invalid"
            + (f", {expansion.dropped} repeated ones left out" if expansion.dropped else "")
        )
    if not (work.missing or as_json):
        out.print(f"nothing is missing; {command_line('report', experiment, overrides)} shows what is there")
    if dry_run:
        for point, count in () if as_json else work.missing:
            out.print(f"{point.id} {point.layout} {point.schedule_label} m={point.microbatches}, {count} launch(es)")
        if as_json:
            _print_json({"missing": [point.id for point, _ in work.missing], "present": [p.id for p in work.present]})
        return DONE
    statuses = _sweep(found.name, chosen, on, work, results, as_json)
    failed = [(job, record) for job, record in statuses if record.status != "ok"]
    if as_json:
        rows = [{"point_id": r.point_id, "status": r.status, "reason": r.reason} for _, r in statuses]
        _print_json(
            {
                "launches": rows,
                "invalid": [p.point_id for p in work.invalid],
                "present": [p.id for p in work.present],
            }
        )
    elif failed:
        for job, record in failed:
            out.print(f"{styled(record.status)} {point_label(job.point)}: {first_line(record.reason)}")
        out.print(f"{len(failed)} of {len(statuses)} launches failed; the same command runs them again")
    return SOME_FAILED if failed or work.invalid else DONE


def _refuse_remote(points: Sequence[Any], on: Backend) -> None:
    """No rank of another machine is started here."""
    from suite.experiment.catalogue import load_cluster

    for name in sorted({point.cluster for point in points}):
        if load_cluster(name).remote:
            refuse(
                f"--on {on.value}: cluster {name} is another machine, and nothing of it runs here; "
                "--on simulate or another scale, such as --scale laptop, would work"
            )


def _sweep(name: str, scale: str, on: Backend, work: Any, results: Path, quiet: bool) -> list[tuple[Any, Any]]:
    """Run the work with its progress shown; on an interrupt say how to go on, and exit."""
    from suite.console import SweepProgress, err
    from suite.experiment.catalogue import load_cluster
    from suite.launch.simulated import SimulatedSweep
    from suite.launch.sweep import LocalSweep

    done: list[tuple[Any, Any]] = []
    sweep: LocalSweep | SimulatedSweep
    if on is Backend.SIMULATE:
        sweep = SimulatedSweep(name, scale, results, load_cluster)
    else:
        sweep = LocalSweep(name, scale, on.source, results, load_cluster)
    try:
        with SweepProgress(work.launches, quiet) as progress:
            for job, record in sweep.run(work, progress):
                done.append((job, record))
    except KeyboardInterrupt:
        err.print(
            f"interrupted: {len(done)} of {work.launches} launches finished and are kept; the running one was ended. "
            "The same command runs what is missing."
        )
        raise typer.Exit(INTERRUPTED) from None
    return done


@app.command()
def plan(
    experiment: ExperimentName,
    overrides: Overrides = None,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show every point: its ranks, its sizes, and where hardware is known its memory and time; or why it cannot run."""
    from suite.console import out, plan_heading, plan_table
    from suite.experiment.catalogue import load_cluster
    from suite.launch.plan import reasons_of, row

    found, chosen, expansion = _expanded(experiment, overrides, scale, cluster)
    rows = [row(planned, load_cluster) for planned in expansion.points]
    if as_json:
        points = [one.as_json() for one in rows]
        _print_json({"experiment": found.name, "scale": chosen, "points": points, "dropped": expansion.dropped})
    else:
        repeated = f"; {expansion.dropped} repeated ones left out" if expansion.dropped else ""
        out.print(f"{found.name} ({chosen}): {found.title}")
        if common := plan_heading(rows):
            out.print(f"all points: {common}")
        out.print(plan_table(rows))
        for (what, reason), ids in reasons_of(rows).items():
            out.print(f"{what} {', '.join(ids)}: {reason}", markup=False)
        out.print(f"{len(expansion.valid)} of {len(rows)} points can run{repeated}")
    if not expansion.valid:
        refuse(f"{found.name} at scale {chosen} has no valid point")


@app.command()
def status(
    experiment: ExperimentName,
    overrides: Overrides = None,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    on: Annotated[Backend, typer.Option("--on", help="Whose records to look at.")] = Backend.LOCAL,
    as_json: AsJson = False,
    results: Results = None,
) -> None:
    """Show where each point of a sweep stands: ok, starting, running, missing, failed and why."""
    from suite.console import out, status_table
    from suite.launch.status import states

    found, chosen, expansion = _expanded(experiment, overrides, scale, cluster, on)
    folders = results_folders(results)
    records, problems = _records(folders, found.name, chosen, on.source)
    rows = states(expansion.points, records, [folder / found.name / chosen / on.source for folder in folders])
    if as_json:
        _print_json({"experiment": found.name, "scale": chosen, "points": [one.as_json() for one in rows]})
    else:
        out.print(status_table(rows))
        for problem in problems:
            out.print(f"skipped {problem.file}: {problem.reason}")
    bad = any(one.state not in ("ok", "starting", "running", "missing") for one in rows)
    raise typer.Exit(SOME_FAILED if bad else DONE)


@app.command()
def report(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENT... [KEY=VALUE]...",
            help="Experiments to report on; overrides choose points. A folder's name, paper: one page of all in it.",
        ),
    ] = None,
    out_dir: Annotated[Path, typer.Option("--out", help="The folder that each report's own folder goes to.")] = Path(
        "reports"
    ),
    explain: Annotated[
        str | None, typer.Option(help="A point's id: print how its numbers come about, and stop.")
    ] = None,
    claims: Annotated[bool, typer.Option("--claims", help="Print every claim of the paper with a verdict.")] = False,
    scale: ScaleName = None,
    results: Results = None,
) -> None:
    """Write the report of each experiment from its records: HTML, Markdown, CSV, SVG and PNG."""
    from suite.reports import Wanted, report_on

    given = words or []
    names = [word for word in given if "=" not in word]
    overrides = [word for word in given if "=" in word]
    wanted = Wanted(names, overrides, scale, explain, claims, results_folders(results), out_dir)
    raise typer.Exit(report_on(wanted))


@app.command()
def score(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[ROWS.csv]...", help="Measured rows; left out, the published ones of the suite."),
    ] = None,
    without: Annotated[
        bool, typer.Option("--ablate", help="The error of each set of rows without each effect that is modelled.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hold the simulator against measured rows: the error of each source, and of each row of a file."""
    from suite.console import ablation_table, out, scored_rows_table, skipped_text
    from suite.records.published import BadRowsError, published_files, read_rows
    from suite.report.ablation import ablate
    from suite.report.score import score as score_of
    from suite.report.score import sources_grid

    try:
        rows = [row for file in files or published_files().values() for row in read_rows(file)]
    except (BadRowsError, OSError) as error:
        refuse(str(error))
    if without:
        ablated = ablate(rows)
        if as_json:
            _print_json([{"without": one.effect, "mape": one.errors} for one in ablated])
        else:
            out.print(ablation_table(ablated))
        raise typer.Exit(DONE if ablated[0].errors else NOTHING_MEASURED)
    found = score_of(rows)
    if as_json:
        _print_json(found.as_json())
    else:
        if files:
            out.print(scored_rows_table(found))
        print(sources_grid(found).text())
        out.print(skipped_text(found), markup=False)
    raise typer.Exit(DONE if found.rows else NOTHING_MEASURED)


@app.command()
def schedule(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Schedules, one under the other; `file` is the one in --file."),
    ] = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Pipeline ranks p.")] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, help="Microbatches m.")] = None,
    chunks: Annotated[int | None, typer.Option(min=1, help="Model chunks per rank v.")] = None,
    group: Annotated[int | None, typer.Option(min=1, help="Microbatches per group (interleaved).")] = None,
    cap: Annotated[int | None, typer.Option(min=1, help="Most microbatches in flight (list, readiness).")] = None,
    base: Annotated[str | None, typer.Option(help="The schedule that readiness takes as its hint.")] = None,
    kept: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of activations kept between B and W (list).", show_default="1"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the schedule `file` there: torch's CSV or program-json.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A record whose trace is drawn under the schedule, which then takes its times.")
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="Time of F,B,W of one microbatch on one rank.", show_default="1,1,1")
    ] = None,
    latency: Annotated[float, typer.Option(min=0, help="Time from a message's end of transfer to its arrival.")] = 0.0,
    transfer: Annotated[float, typer.Option(min=0, help="Time that a message takes its link.")] = 0.0,
    overlap: Annotated[bool, typer.Option(help="Whether ranks compute while messages travel.")] = True,
    format_: Annotated[Format | None, typer.Option("--format", help="What to print.", show_default="text")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write there instead of to standard output.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove schedules, print their bubbles and peaks of live activations, and draw or export them."""
    from suite.pipeline.collection import no_collection
    from suite.pipeline.summary import read_network
    from suite.schedules import Asked, Drawing

    if as_json and (out_file or format_):
        refuse("--json prints numbers only; it goes with neither --format nor --out")
    if trace and cost:
        refuse("--trace takes the times of the record; leave --cost out")
    form = format_ or Format.TEXT
    try:
        asked = Asked(stages, microbatches, chunks, group, cap, base, file, kept)
        with no_collection():
            drawing = Drawing.of(names or [], asked, trace, cost or "1,1,1", read_network(latency, transfer, overlap))
            text = "" if as_json else drawing.exported(form, out_file is not None)
    except ValueError as error:
        refuse(str(error))
    if as_json:
        _print_json(drawing.as_json())
        return
    if out_file or (form is Format.TEXT and len(drawing.shown) == 1):
        print(drawing.summary)
    if out_file:
        out_file.write_text(text)
        print(f"written: {out_file}")
    else:
        print(text, end="" if text.endswith("\n") else "\n")


@app.command()
def calibrate(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile's name; here where left out.")
    ] = None,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="The profile's file, NAME.yaml.", show_default="slurm/clusters/NAME.yaml"),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Ranks that measure at once.")] = 2,
    precision: Annotated[str, typer.Option(help="Precisions of the matrix products, such as fp32,bf16.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Measure this machine and write a cluster profile with which --on simulate predicts it."""
    from suite.calibrate.profile import asked, calibrate_machine
    from suite.calibrate.sweep import FULL

    written = calibrate_machine(asked(name, out_file, ranks, precision), FULL)
    if as_json:
        _print_json(written.as_json())
    else:
        print(written.summary())


@app.command("list")
def list_() -> None:
    """List experiments with their scales and numbers of points, schedules, clusters and models."""
    from suite.console import experiment_table, out
    from suite.experiment.catalogue import list_clusters
    from suite.experiment.description import described_experiments
    from suite.experiment.models import MODELS

    out.print("[bold]experiments[/]:")
    out.print(experiment_table(described_experiments()))
    for heading, names in (
        ("schedules", SCHEDULE_NAMES),
        ("clusters", list_clusters()),
        ("models", MODELS),
    ):
        out.print(f"[bold]{heading}[/]: " + ", ".join(names), soft_wrap=True)  # the terminal breaks the line


@app.command()
def doctor() -> None:
    """Say what this machine can run, and what is missing."""
    from suite.console import doctor_table, out
    from suite.launch.doctor import examine

    findings = examine()
    out.print(doctor_table(findings))
    raise typer.Exit(SOME_FAILED if any(finding.ok is False for finding in findings) else DONE)
