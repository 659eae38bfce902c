"""What `suite run --on slurm` does: submits what is missing, and with --wait follows it."""

import typer

from suite.chosen import Chosen, How
from suite.console import SweepProgress, err, out
from suite.ending import INTERRUPTED, command_line, print_json, refuse
from suite.experiment.catalogue import load_cluster
from suite.experiment.point import Point
from suite.launch.job import Job
from suite.launch.slurm.shape import Shape, shape_of
from suite.launch.slurm.submit import Member, RefusedError, Submitted, script_of
from suite.launch.slurm.sweep import SlurmSweep
from suite.launch.todo import Todo
from suite.records.schema import Record


def submit_missing(chosen: Chosen, how: How, work: Todo) -> list[tuple[Job, Record]] | None:
    """Submit the launches that are missing and not in flight; if asked to, wait for them and return their records."""
    _refuse_limit(how, [point for point, _ in work.missing])
    name, store = chosen.experiment.name, chosen.folders[0]
    sweep = SlurmSweep(name, chosen.at, store, load_cluster, how.minutes, how.together)
    with SweepProgress(work.launches, how.as_json) as progress:
        before = len(sweep.in_flight([point for point, _ in work.missing]))
        submitted = _submit(sweep, work, progress, how)
        launches = sum(len(member.jobs) for one in submitted for member in one.members)
        if not how.as_json:
            out.print(f"{launches} launches submitted, {before} in flight before")
        if how.wait:
            return _follow(sweep, work, progress)
    if how.as_json:
        rows = [
            {"job_id": one.job_id, "name": one.name, "points": [job.point.id for m in one.members for job in m.jobs]}
            for one in submitted
        ]
        print_json({"submitted": rows, "in_flight_before": before, "invalid": [p.point_id for p in work.invalid]})
    elif launches or before:
        for command, purpose in (("status", "shows how far they are"), ("logs", "what they print")):
            out.print(f"{_command(command, chosen)} {purpose}", soft_wrap=True)
    return None


def print_scripts(chosen: Chosen, work: Todo) -> None:
    """Print what each shape would ask SLURM for; nothing is claimed, and SLURM is not asked."""
    shapes: dict[tuple[str, Shape], list[Point]] = {}
    for point, count in work.missing:
        cluster = load_cluster(point.cluster)
        assert cluster.slurm is not None
        shapes.setdefault((point.cluster, shape_of([point], cluster, cluster.slurm, None)), []).extend([point] * count)
    for (name, shape), points in sorted(shapes.items()):
        slurm = load_cluster(name).slurm
        assert slurm is not None
        out.print(f"cluster {name}: {len(points)} launch(es), each on {shape}", markup=False)
        script = script_of(Member((), name, slurm, shape), chosen.folders[0] / chosen.experiment.name / ".slurm")
        out.print("\n".join(f"  {line}" for line in script.splitlines() if line.startswith("#SBATCH")), markup=False)


def _command(command: str, chosen: Chosen) -> str:
    options = (("--scale", chosen.scale), ("--cluster", chosen.cluster))
    given = [word for name, value in options if value for word in (name, value)]
    return command_line(command, chosen.name, [*chosen.overrides, *given])


def _refuse_limit(how: How, points: list[Point]) -> None:
    for name in sorted({point.cluster for point in points}):
        slurm = load_cluster(name).slurm
        most = slurm.max_minutes if slurm else None
        if how.minutes is not None and most is not None and how.minutes > most:
            refuse(f"--time {how.minutes}: cluster {name} has slurm.max_minutes={most}; --time {most} would work")


def _submit(sweep: SlurmSweep, work: Todo, progress: SweepProgress, how: How) -> list[Submitted]:
    submitted: list[Submitted] = []
    try:
        for one in sweep.submit(sweep.members(work, progress)):
            submitted.append(one)
            if not how.as_json:
                out.print(f"submitted {one}", soft_wrap=True, markup=False)
    except RefusedError as error:
        what = f"{len(submitted)} array(s) were submitted before; " if submitted else "nothing was submitted; "
        refuse(f"{what}{error}")
    return submitted


def _follow(sweep: SlurmSweep, work: Todo, progress: SweepProgress) -> list[tuple[Job, Record]]:
    done: list[tuple[Job, Record]] = []
    try:
        for job, record in sweep.follow([point for point, _ in work.missing], progress):
            done.append((job, record))
    except KeyboardInterrupt:
        err.print(
            f"no longer waiting: {len(done)} launches have ended, and the others go on. The same command waits for "
            f"them again; {command_line('cancel', sweep.experiment, [])} ends them."
        )
        raise typer.Exit(INTERRUPTED) from None
    return done
