"""What `suite run`, `status`, `logs` and `cancel` do: a sweep's points, what runs of them, and how it ends."""

import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from rich.live import Live

from suite.chosen import Chosen, How
from suite.console import SweepProgress, err, first_line, label, out, status_table, styled
from suite.ending import (
    DONE,
    INTERRUPTED,
    NOTHING_MEASURED,
    SOME_FAILED,
    command_line,
    print_json,
    print_skipped,
    refuse,
)
from suite.experiment.catalogue import load_cluster
from suite.experiment.errors import did_you_mean
from suite.experiment.expansion import Planned
from suite.launch.backend import Backend
from suite.launch.job import Job
from suite.launch.slurm.settle import Jobs
from suite.launch.status import UNDER_WAY, PointState, launches_of, states
from suite.launch.todo import Todo, todo
from suite.records.schema import Record
from suite.records.store import Problem

WATCH_SECONDS = 2.0


def run_sweep(chosen: Chosen, how: How) -> int:
    """Run one experiment's missing points, or submit them; the exit code."""
    expansion = chosen.expansion
    if chosen.on is not Backend.SIMULATE:
        _refuse_elsewhere(expansion.valid, chosen.on)
        chosen.settled(expansion.valid)
    records, problems = chosen.records()
    work = todo(expansion.points, records, how.fresh)
    print_skipped(problems)
    for planned in work.invalid:
        print(f"invalid {planned.label} [{planned.point_id}]: {'; '.join(planned.reasons)}", file=sys.stderr)
    for point, why in work.elsewhere:
        print(f"not present {point.layout} {point.schedule_label} [{point.id}]: its record was {why}", file=sys.stderr)
    name = chosen.experiment.name
    if not expansion.valid:
        refuse(f"{name} at scale {chosen.at} has no valid point; nothing was started")
    if not how.as_json:
        out.print(
            f"{name} ({chosen.at}): {work.launches} launches to run, {len(work.present)} points present, "
            f"{len(work.invalid)} invalid"
            + (f", {expansion.dropped} repeated ones left out" if expansion.dropped else "")
        )
        if not work.missing:
            report = command_line("report", chosen.name, chosen.overrides)
            out.print(f"nothing is missing; {report} shows what is there")
    if how.dry_run:
        _print_missing(work, how.as_json)
        if chosen.on is Backend.SLURM and not how.as_json:
            from suite.submissions import print_scripts

            print_scripts(chosen, work)
        return DONE
    if chosen.on is Backend.SLURM:
        from suite.submissions import submit_missing

        launches = submit_missing(chosen, how, work)
    else:
        launches = _here(chosen, work, how.as_json)
    if launches is None:  # they go on without this process
        return SOME_FAILED if work.invalid else DONE
    return _ended(work, launches, how.as_json)


def _print_missing(work: Todo, as_json: bool) -> None:
    if as_json:
        print_json({"missing": [point.id for point, _ in work.missing], "present": [p.id for p in work.present]})
        return
    for point, count in work.missing:
        out.print(f"{point.id} {point.layout} {point.schedule_label} m={point.microbatches}, {count} launch(es)")


def _ended(work: Todo, launches: Sequence[tuple[Job, Record]], as_json: bool) -> int:
    """Say which launches failed and were not made up for by another of the same point; the exit code."""
    made_up = {record.point_id for _, record in launches if record.status == "ok"}
    failed = [(job, r) for job, r in launches if r.status != "ok" and r.point_id not in made_up]
    if as_json:
        rows = [{"point_id": r.point_id, "status": r.status, "reason": r.reason} for _, r in launches]
        print_json(
            {"launches": rows, "invalid": [p.point_id for p in work.invalid], "present": [p.id for p in work.present]}
        )
    elif failed:
        for job, record in failed:
            out.print(f"{styled(record.status)} {label(job.point)}: {first_line(record.reason)}")
        out.print(f"{len(failed)} of {len(launches)} launches failed; the same command runs them again")
    return SOME_FAILED if failed or work.invalid else DONE


def _refuse_elsewhere(points: Sequence[Planned], on: Backend) -> None:
    """No rank of another machine is started here, and nothing is submitted to where nobody said how."""
    for name in sorted({planned.point.cluster for planned in points if planned.point}):
        cluster = load_cluster(name)
        if on is Backend.SLURM and cluster.slurm is None:
            able = [known for known in _submittable() if known != name]
            refuse(
                f"--on slurm: the profile of cluster {name} has no section slurm, which says how to submit there; "
                f"--cluster {able[0] if able else 'NAME'}, or a section as in slurm/clusters/template.yaml, would work"
            )
        if on is not Backend.SLURM and cluster.remote:
            refuse(
                f"--on {on.value}: cluster {name} is another machine, and nothing of it runs here; "
                "--on simulate or another scale, such as --scale laptop, would work"
            )


def _submittable() -> list[str]:
    from suite.experiment.catalogue import list_clusters

    return [name for name in list_clusters() if load_cluster(name).slurm is not None]


def _here(chosen: Chosen, work: Todo, quiet: bool) -> list[tuple[Job, Record]]:
    """Run the work on this machine with its progress shown; on an interrupt say how to go on, and exit."""
    done: list[tuple[Job, Record]] = []
    where = (chosen.experiment.name, chosen.at)
    sweep: Any
    if chosen.on is Backend.SIMULATE:
        from suite.launch.simulated import SimulatedSweep

        sweep = SimulatedSweep(*where, chosen.folders[0], load_cluster)
    else:
        from suite.launch.sweep import LocalSweep

        sweep = LocalSweep(*where, chosen.on.source, chosen.folders[0], load_cluster)
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


def show_status(chosen: Chosen, watch: bool, as_json: bool) -> int:
    """Print where each point stands, once or until nothing is under way; the exit code."""
    if watch:
        if as_json:
            refuse("--watch: it is for people, and --json prints once; leave one of them out")
        rows, problems, silent = _watched(chosen)
    else:
        rows, problems, silent = _states(chosen)
        if as_json:
            points = [one.as_json() for one in rows]
            print_json({"experiment": chosen.experiment.name, "scale": chosen.at, "points": points})
        else:
            out.print(status_table(rows))
    if silent:
        print(f"SLURM gave no answer, so its jobs count as under way: {silent}", file=sys.stderr)
    if not as_json:
        for problem in problems:
            out.print(f"skipped {problem.file}: {problem.reason}")
    bad = any(one.state not in ("ok", "missing", *UNDER_WAY) for one in rows)
    return SOME_FAILED if bad else DONE


def _states(chosen: Chosen) -> tuple[list[PointState], list[Problem], str | None]:
    jobs = chosen.settled(chosen.expansion.points)
    records, problems = chosen.records()
    return states(chosen.expansion.points, records, chosen.source_folders, jobs), problems, jobs.silent


def _watched(chosen: Chosen) -> tuple[list[PointState], list[Problem], str | None]:
    with Live(console=out, auto_refresh=False) as live:
        while True:
            rows, problems, silent = _states(chosen)
            live.update(status_table(rows), refresh=True)
            if not any(one.state in UNDER_WAY for one in rows):
                return rows, problems, silent
            time.sleep(WATCH_SECONDS)


def show_logs(chosen: Chosen, point: str | None, rank: int | None, follow: bool) -> int:
    """Print what the processes of a point's newest launch printed; the exit code."""
    from suite.launch.logs import Logs

    points = [one for one in chosen.expansion.points if point is None or one.point_id.startswith(point)]
    if not points:
        _refuse_point(point or "", chosen)
    launches = launches_of(points, chosen.source_folders)
    written = [one for one in launches if (one.path / "job.json").exists()]
    newest = max(written, key=lambda one: (one.path / "job.json").stat().st_mtime, default=None)
    job = Job.of(newest) if newest else None
    if newest is None or job is None:
        err.print(f"no launch has left logs; {command_line('run', chosen.name, chosen.overrides)} makes some")
        return NOTHING_MEASURED
    if rank is not None and not 0 <= rank < job.point.parallel.ranks:
        refuse(f"--rank {rank}: the point has {job.point.parallel.ranks} ranks; 0 would work")
    print(f"{label(job.point)}: {newest.path}", file=sys.stderr)
    logs = Logs(job, newest)
    for line in logs.follow(rank) if follow else logs.lines(rank):
        print(line, flush=follow)
    return DONE


def cancel_sweep(chosen: Chosen, only: Sequence[str]) -> int:
    """End what is under way, of all points or of some by id; the exit code."""
    from suite.launch.cancel import cancel

    known = {one.point_id: one for one in chosen.expansion.points}
    if unknown := [point for point in only if point not in known]:
        _refuse_point(unknown[0], chosen)
    points = [known[point] for point in only] if only else list(known.values())
    done = cancel(launches_of(points, chosen.source_folders), Jobs())
    for one in done:
        what = f"not cancelled: {one.problem}" if one.problem else "cancelled"
        out.print(f"{one.folder.path.parents[1].name}: {one.who}: {what}", markup=False)
    if not done:
        out.print("nothing is under way")
    return SOME_FAILED if any(one.problem for one in done) else DONE


def _refuse_point(point: str, chosen: Chosen) -> NoReturn:
    known = {one.point_id: None for one in chosen.expansion.points}
    name = chosen.experiment.name
    refuse(f"point {point}: {name} has no such point at scale {chosen.at}; {did_you_mean(point, known)}")
