"""What `suite run --on slurm` does: submits what is missing, and with --wait follows it."""

import typer

from suite.chosen import Chosen, How
from suite.console import SweepProgress, err, out
from suite.ending import INTERRUPTED, print_json, refuse
from suite.experiment.catalogue import load_cluster
from suite.launch.job import Job
from suite.launch.slurm.shape import Shape
from suite.launch.slurm.submit import Member, RefusedError, Submitted, script_of
from suite.launch.slurm.sweep import SlurmSweep
from suite.launch.todo import Todo
from suite.records.schema import Record


def submit_missing(chosen: Chosen, how: How, work: Todo) -> list[tuple[Job, Record]] | None:
    """Submit the launches that are missing and not in flight; if asked to, wait for them and return their records."""
    sweep = _sweep(chosen, how, work)
    with SweepProgress(work.launches, how.as_json) as progress:
        before = sweep.in_flight([point for point, _ in work.missing])
        submitted = _submit(sweep, sweep.members(work, before, progress), how)
        launches = sum(len(member.jobs) for one in submitted for member in one.members)
        if not how.as_json:
            out.print(f"{launches} launches submitted, {len(before)} in flight before")
        if how.wait:
            return _follow(chosen, sweep, work, progress)
    if how.as_json:
        rows = [
            {"job_id": one.job_id, "name": one.name, "points": [job.point.id for m in one.members for job in m.jobs]}
            for one in submitted
        ]
        print_json({"submitted": rows, "in_flight_before": len(before), "invalid": [p.point_id for p in work.invalid]})
    elif launches or before:
        for command, purpose in (("status", "shows how far they are"), ("logs", "what they print")):
            out.print(f"{chosen.command(command)} {purpose}", soft_wrap=True)
    return None


def print_scripts(chosen: Chosen, how: How, work: Todo) -> None:
    """Print what each shape would ask SLURM for; nothing is claimed, and SLURM is not asked."""
    sweep = _sweep(chosen, how, work)
    launches = [point for point, count in work.missing for _ in range(count)]
    shapes: dict[tuple[str, Shape], list[int]] = {}  # the launches of each job of the shape
    for part in sweep.cut(launches):
        points = [launches[place] for place in part]
        shapes.setdefault((points[0].cluster, sweep.shape(points)), []).append(len(points))
    for (name, shape), counts in sorted(shapes.items()):
        slurm = load_cluster(name).slurm
        assert slurm is not None
        what = f"{sum(counts)} launch(es) in {len(counts)} job(s), each on {shape}"
        out.print(f"cluster {name}: {what}", markup=False)
        script = script_of(Member((), name, slurm, shape), chosen.folders[0] / chosen.experiment.name / ".slurm")
        out.print("\n".join(f"  {line}" for line in script.splitlines() if line.startswith("#SBATCH")), markup=False)


def _sweep(chosen: Chosen, how: How, work: Todo) -> SlurmSweep:
    """The sweep as it was asked for. Refuses a limit that a cluster does not allow."""
    for name in sorted({point.cluster for point, _ in work.missing}):
        slurm = load_cluster(name).slurm
        most = slurm.max_minutes if slurm else None
        if how.minutes is not None and most is not None and how.minutes > most:
            refuse(f"--time {how.minutes}: cluster {name} has slurm.max_minutes={most}; --time {most} would work")
    return SlurmSweep(chosen.experiment.name, chosen.at, chosen.folders[0], load_cluster, how.minutes, how.together)


def _submit(sweep: SlurmSweep, members: list[Member], how: How) -> list[Submitted]:
    submitted: list[Submitted] = []
    try:
        for one in sweep.submit(members):
            submitted.append(one)
            if not how.as_json:
                out.print(f"submitted {one}", soft_wrap=True, markup=False)
    except RefusedError as error:
        what = f"{len(submitted)} array(s) were submitted before; " if submitted else "nothing was submitted; "
        refuse(f"{what}{error}")
    return submitted


def _follow(chosen: Chosen, sweep: SlurmSweep, work: Todo, progress: SweepProgress) -> list[tuple[Job, Record]]:
    done: list[tuple[Job, Record]] = []
    try:
        for job, record in sweep.follow([point for point, _ in work.missing], progress):
            done.append((job, record))
    except KeyboardInterrupt:
        err.print(
            f"no longer waiting: {len(done)} launches have ended, and the others go on. The same command waits for "
            f"them again; {chosen.command('cancel')} ends them."
        )
        raise typer.Exit(INTERRUPTED) from None
    return done
