"""The front door: parses, calls, prints."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from suite import __version__
from suite.ending import DONE, NOTHING_MEASURED, SOME_FAILED, print_json, refuse, to_the_end
from suite.launch.backend import Backend
from suite.pipeline.names import SCHEDULE_NAMES
from suite.regressions import add_commands

# Looking for plugins of pydantic goes through every installed package, a tenth of a second in which nobody finds one.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")

app = typer.Typer(
    help="A reproducible benchmark and scaling-study suite for 3D-parallel GPT training.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
add_commands(app)


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
PointsAndOverrides = Annotated[
    list[str] | None, typer.Argument(metavar="[POINT]... [KEY=VALUE]...", help="Points by their ids, and overrides.")
]
ScaleName = Annotated[str | None, typer.Option("--scale", help="The experiment's scale; laptop where it exists.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="A cluster profile, instead of the experiment's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Results = Annotated[list[Path] | None, typer.Option("--results", help="Results folders to read; several are merged.")]
RunResults = Annotated[Path, typer.Option("--results", help="The folder that records go to.")]


def main() -> None:
    """Run the command line."""
    to_the_end(app)


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
    wait: Annotated[bool, typer.Option("--wait", help="With --on slurm: stay until the jobs have ended.")] = False,
    together: Annotated[
        bool, typer.Option("--together", help="With --on slurm: all points of a shape in one job, one after another.")
    ] = False,
    minutes: Annotated[
        int | None, typer.Option("--time", min=1, help="With --on slurm: each job's limit in minutes.")
    ] = None,
    as_json: AsJson = False,
    results: RunResults = Path("results/runs"),
) -> None:
    """Run every point that is missing; each launch leaves one record. A folder's name stands for all in it."""
    from suite.chosen import Chosen, results_folders
    from suite.experiment.catalogue import experiments_in
    from suite.sweeps import How, run_sweep

    given = {"--wait": wait, "--together": together, "--time": minutes is not None}
    if on is not Backend.SLURM and (odd := [option for option, is_given in given.items() if is_given]):
        refuse(f"{odd[0]}: it is of jobs in SLURM; with --on slurm it would work")
    folders, how = results_folders([results]), How(fresh, dry_run, as_json, wait, together, minutes)
    members = experiments_in(experiment)
    if members and as_json:
        refuse(f"--json: it takes one experiment, and {experiment} is a folder; {next(iter(members))} would work")
    names = members or [experiment]
    codes = [run_sweep(Chosen(name, overrides or [], on, scale, cluster, folders), how) for name in names]
    raise typer.Exit(max(codes))


@app.command()
def plan(
    experiment: ExperimentName,
    overrides: Overrides = None,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show every point: its ranks, its sizes, and where hardware is known its memory and time; or why it cannot run."""
    from suite.chosen import Chosen
    from suite.console import out, plan_heading, plan_table
    from suite.experiment.catalogue import load_cluster
    from suite.launch.plan import reasons_of, row

    asked = Chosen(experiment, overrides or [], Backend.LOCAL, scale, cluster, [])
    found, chosen, expansion = asked.experiment, asked.at, asked.expansion
    rows = [row(planned, load_cluster) for planned in expansion.points]
    if as_json:
        points = [one.as_json() for one in rows]
        print_json({"experiment": found.name, "scale": chosen, "points": points, "dropped": expansion.dropped})
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
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until nothing is under way.")] = False,
    as_json: AsJson = False,
    results: Results = None,
) -> None:
    """Show where each point of a sweep stands: ok, queued, starting, running, missing, failed and why."""
    from suite.chosen import Chosen, results_folders
    from suite.sweeps import show_status

    chosen = Chosen(experiment, overrides or [], on, scale, cluster, results_folders(results))
    raise typer.Exit(show_status(chosen, watch, as_json))


@app.command()
def logs(
    experiment: ExperimentName,
    words: PointsAndOverrides = None,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    on: Annotated[Backend, typer.Option("--on", help="Whose launches to look at.")] = Backend.LOCAL,
    rank: Annotated[int | None, typer.Option("--rank", help="This rank's lines only.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print on until the launch has ended.")] = False,
    results: Results = None,
) -> None:
    """Print what the processes of a point's newest launch printed; without a point, of the sweep's newest launch."""
    from suite.chosen import Chosen, results_folders
    from suite.sweeps import show_logs

    points, overrides = _split(words)
    if len(points) > 1:
        refuse(f"it takes one point, and {' '.join(points)} are several; {points[0]} alone would work")
    chosen = Chosen(experiment, overrides, on, scale, cluster, results_folders(results))
    raise typer.Exit(show_logs(chosen, points[0] if points else None, rank, follow))


@app.command()
def cancel(
    experiment: ExperimentName,
    words: PointsAndOverrides = None,
    scale: ScaleName = None,
    cluster: ClusterName = None,
    on: Annotated[Backend, typer.Option("--on", help="Whose launches to end.")] = Backend.LOCAL,
    results: Results = None,
) -> None:
    """End what is under way of a sweep, or of some of its points: jobs in SLURM, or the sweep that runs here."""
    from suite.chosen import Chosen, results_folders
    from suite.sweeps import cancel_sweep

    points, overrides = _split(words)
    chosen = Chosen(experiment, overrides, on, scale, cluster, results_folders(results))
    raise typer.Exit(cancel_sweep(chosen, points))


def _split(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Points by their ids, and overrides."""
    given = words or []
    return [word for word in given if "=" not in word], [word for word in given if "=" in word]


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
    from suite.chosen import results_folders
    from suite.reports import Wanted, report_on

    names, overrides = _split(words)
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
            print_json([{"without": one.effect, "mape": one.errors} for one in ablated])
        else:
            out.print(ablation_table(ablated))
        raise typer.Exit(DONE if ablated[0].errors else NOTHING_MEASURED)
    found = score_of(rows)
    if as_json:
        print_json(found.as_json())
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
        print_json(drawing.as_json())
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
        print_json(written.as_json())
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
def doctor(cluster: ClusterName = None) -> None:
    """Say what this machine can run, and what is missing; of a cluster, whether it is as its profile says."""
    from suite.console import doctor_table, out
    from suite.experiment.catalogue import load_cluster
    from suite.launch.doctor import examine
    from suite.launch.slurm.examine import examine_cluster

    findings = examine() if cluster is None else list(examine_cluster(load_cluster(cluster)))
    out.print(doctor_table(findings))
    raise typer.Exit(SOME_FAILED if any(finding.ok is False for finding in findings) else DONE)
