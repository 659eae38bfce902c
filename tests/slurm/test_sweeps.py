"""Sweeps on a real SLURM: what is asked for, what survives, and what is said of what does not."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from statistics import median

import pytest
from command import Answer, run, start

from suite.launch.job import JobFolder
from suite.records.store import Store

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

PROFILE = "max_ranks: 8\ndevice: cpu\nslurm: {ranks_per_node: 2, gpus_per_rank: 0, minutes: 15, "
PROFILES = {
    "nodes": "retries: 2}",
    "one-at-a-time": "max_running: 1}",
    "no-retries": "retries: 0}",
    "little-memory": "setup: ['ulimit -v 3000000']}",
    "held": "gpus_per_rank: 1, extra: {hold: true}}",
    "nowhere": "partition: nowhere}",
}
TINY = """\
model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 64, seq_length: 8}
training: {global_batch: 4}
"""
BRIEF = "measure: {warmup: 1, iterations: 3}\n"
LONG = 100_000  # iterations: until somebody ends it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with cluster profiles of its own."""
    made = tmp_path_factory.mktemp("sweeps")
    clusters = made / "slurm" / "clusters"
    clusters.mkdir(parents=True)
    for name, rest in PROFILES.items():
        text = PROFILE.replace("gpus_per_rank: 0, ", "") if "gpus_per_rank" in rest else PROFILE
        (clusters / f"{name}.yaml").write_text(f"name: {name}\n{text}{rest}\n")
    return made


def experiment(folder: Path, name: str, rest: str) -> None:
    (folder / f"{name}.yaml").write_text(f"name: {name}\n{TINY}{rest}")


def on_slurm(folder: Path, name: str, *options: str) -> Answer:
    return run("run", f"{name}.yaml", "--on", "slurm", *options, cwd=folder)


def records(folder: Path, name: str):
    found, problems = Store(folder / "results" / "runs").read(name)
    assert problems == []
    return found


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait(until, what: str, seconds: float = 90):
    """What `until()` gives once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := until():
            return found
        time.sleep(0.2)
    raise AssertionError(f"after {seconds} s still no {what}")


def states(folder: Path, name: str, *options: str) -> dict[str, str]:
    answer = run("status", f"{name}.yaml", "--json", *options, cwd=folder)
    return {one["label"]: one["state"] for one in answer.json["points"]}


class Launch:
    """A launch that is under way."""

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        def found():
            for file in (folder / "results" / "runs" / name).rglob("progress.jsonl"):
                job = json.loads((file.parent / "job.json").read_text())
                if job["point"]["cluster"] == cluster and file.stat().st_size:
                    return file.parent
            return None

        self.path = wait(found, f"progress of {name} on {cluster}")
        self.ranks = JobFolder(self.path).processes(range(8))
        self.id = json.loads((self.path / "submission.json").read_text())["job_id"]
        self.hosts = json.loads((self.path / "attempt.json").read_text())["hosts"]


# What is asked for


@pytest.fixture(scope="module")
def shapes(folder):
    """Three points of 1, 2 and 4 ranks, run here and in SLURM: the records of both, and SLURM's own account."""
    cases = "[{}, {parallel.pipeline: 2}, {parallel: {pipeline: 2, data: 2}}]"
    experiment(folder, "shapes", f"{BRIEF}sweep: {{cases: {cases}}}\n")
    answer = on_slurm(folder, "shapes", "--cluster", "nodes", "--wait")
    assert answer.code == 0, answer
    texts = [ask("scontrol", "show", "job", one) for one in re.findall(r"submitted job (\d+)", answer.out)]
    jobs = {re.search(r"NumNodes=(\d+) NumCPUs=(\d+)", text).groups(): text for text in texts}
    local = run("run", "shapes.yaml", "parallel.pipeline=1", "parallel.data=1", cwd=folder)
    assert local.code == 0, local
    return answer, records(folder, "shapes"), jobs


def test_points_of_each_shape_get_their_nodes_with_one_task_each(shapes):
    answer, _, jobs = shapes
    assert answer.out.count("submitted job") == 3
    for nodes, cpus in ((1, 1), (1, 2), (2, 2)):
        said = jobs[str(nodes), str(nodes * cpus)]
        assert f"NumNodes={nodes} NumCPUs={nodes * cpus} NumTasks={nodes} CPUs/Task={cpus}" in said
        assert "Requeue=1" in said


def test_the_losses_are_those_of_a_local_run(shapes):
    _, found, _ = shapes
    here = [one for one in found if one.point["cluster"] == "local"]
    there = [one for one in found if one.point["cluster"] == "nodes"]
    assert (len(here), len(there)) == (1, 3)
    for one in there:
        assert one.status == "ok"
        assert one.iterations.loss == pytest.approx(here[0].iterations.loss, abs=1e-6)


def test_a_record_names_its_job_and_two_nodes_were_in_use(shapes):
    _, found, _ = shapes
    hosts = {len(one.ranks): one.environment["hosts"] for one in found if one.point["cluster"] == "nodes"}
    assert [len(set(hosts[ranks])) for ranks in (1, 2, 4)] == [1, 1, 2]
    assert all(one.environment["job_id"] and one.preflight["slow"] is not None for one in found if one.status == "ok")


def test_nothing_is_submitted_again(shapes, folder):
    again = on_slurm(folder, "shapes", "--cluster", "nodes")
    assert (again.code, "0 launches to run, 3 points present" in again.out) == (0, True)


def test_gpus_are_asked_for_from_inside_another_job_and_the_waiting_one_is_cancelled_from_elsewhere(folder):
    experiment(folder, "held", "parallel: {pipeline: 2, data: 2}\ncluster: held\n")
    inside = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "7", "SLURM_CPUS_PER_TASK": "9", "SBATCH_PARTITION": "nowhere"}
    front = start("run", "held.yaml", "--on", "slurm", cwd=folder, **inside)
    out, err = front.communicate(timeout=60)
    assert front.returncode == 0, out + err
    assert set(states(folder, "held").values()) == {"queued"}
    (submission,) = (folder / "results" / "runs" / "held").rglob("submission.json")
    job = json.loads(submission.read_text())["job_id"]
    said = ask("scontrol", "show", "job", job)
    assert "TresPerNode=gres:gpu:2" in said
    assert "CPUs/Task=2" in said
    cancelled = run("cancel", "held.yaml", cwd=folder)
    assert (cancelled.code, "cancelled" in cancelled.out) == (0, True)
    assert set(states(folder, "held").values()) == {"cancelled"}
    assert "CANCELLED" in ask("scontrol", "show", "job", job)


def test_two_sweeps_at_once_submit_every_point_once(folder):
    experiment(folder, "twice", "cluster: held\nsweep: {grid: {training.seed: [1, 2, 3, 4]}}\n")
    fronts = [start("run", "twice.yaml", "--on", "slurm", cwd=folder) for _ in range(2)]
    said = [front.communicate(timeout=90) for front in fronts]
    try:
        assert [front.returncode for front in fronts] == [0, 0], said
        notes = list((folder / "results" / "runs" / "twice").rglob("submission.json"))
        points = [note.parents[2].name for note in notes]
        assert len(points) == len(set(points)) == 4
        again = on_slurm(folder, "twice")
        assert "0 launches submitted, 4 in flight before" in again.out
    finally:
        run("cancel", "twice.yaml", cwd=folder)


# What survives


def test_killing_the_front_loses_nothing_and_runs_nothing_twice(folder):
    sweep = "cluster: one-at-a-time\nsweep: {grid: {training.seed: [1, 2, 3, 4]}}\n"
    experiment(folder, "killed", f"{BRIEF}{sweep}")
    front = start("run", "killed.yaml", "--on", "slurm", "--wait", cwd=folder)
    wait(lambda: records(folder, "killed"), "first record")
    front.send_signal(signal.SIGKILL)
    front.wait()
    ids = {one.point_id for one in records(folder, "killed")}
    again = on_slurm(folder, "killed", "--wait")
    assert again.code == 0, again
    found = records(folder, "killed")
    assert [one.status for one in found] == ["ok"] * 4
    assert ids <= {one.point_id for one in found}
    assert len({one.point_id for one in found}) == 4
    assert "0 launches submitted" in again.out
    assert len({one.environment["job_id"].partition("_")[0] for one in found}) == 1


@pytest.fixture(scope="module")
def limited(folder, shapes):
    """A point that takes longer than the limit it is given, submitted while the other tests go on."""
    one = next(r for r in shapes[1] if r.point["cluster"] == "nodes" and len(r.ranks) == 1)
    iterations = round(40 / median(one.iterations.seconds[1:]))
    experiment(folder, "limited", f"measure: {{iterations: {iterations}}}\ncluster: nodes\n")
    answer = on_slurm(folder, "limited", "--time", "1")
    assert answer.code == 0, answer


@pytest.fixture(scope="module")
def troubled(folder, limited):
    """Points that are ended in many ways while a sweep waits for them: exit code, output, and records by cluster."""
    sweep = f"""\
parallel: {{pipeline: 2, data: 2}}
sweep:
  cases:
    - {{cluster: nodes, measure.iterations: 300, training.seed: 1}}
    - {{cluster: no-retries, measure.iterations: {LONG}}}
    - {{cluster: one-at-a-time, measure.iterations: {LONG}}}
"""
    experiment(folder, "troubled", sweep)
    cases = "[{model.hidden_size: 8192}, {training.seed: 2}]"
    experiment(folder, "together", f"{BRIEF}cluster: little-memory\nsweep: {{cases: {cases}}}\n")
    answer = on_slurm(folder, "together", "--together")
    assert "1 job of 1 node of 1 rank, 30 min, 2 launch(es)" in answer.out
    front = start("run", "troubled.yaml", "--on", "slurm", "--wait", cwd=folder)
    try:
        first = Launch(folder, "troubled", "nodes")
        ask("scontrol", "requeue", first.id)
        os.kill(Launch(folder, "troubled", "no-retries").ranks[3], signal.SIGKILL)
        ask("scancel", Launch(folder, "troubled", "one-at-a-time").id)
        out, err = front.communicate(timeout=200)
    finally:
        front.kill()
    return front.returncode, out + err, {one.point["cluster"]: one for one in records(folder, "troubled")}, first


def test_the_sweep_says_that_some_failed(troubled):
    code, said, found, _ = troubled
    assert code == 1, said
    assert len(found) == 3
    assert "2 of 3 launches failed" in said


def test_a_requeued_job_starts_again_and_is_ok(troubled):
    _, said, found, first = troubled
    record = found["nodes"]
    assert (record.status, record.reason) == ("ok", None), said
    assert record.environment["attempt"] == 1
    assert record.environment["job_id"] == first.id
    assert (first.path / "attempt-0" / "progress.jsonl").exists()


def test_a_killed_rank_is_named(troubled):
    record = troubled[2]["no-retries"]
    assert record.status == "failed"
    assert "rank 3 was killed by SIGKILL" in record.reason


def test_scancel_is_cancelled(troubled):
    record = troubled[2]["one-at-a-time"]
    assert record.status == "cancelled"
    assert "SLURM says CANCELLED" in record.reason


def test_in_one_job_a_rank_without_memory_is_oom_and_the_next_point_is_measured(troubled, folder):
    wait(lambda: len(records(folder, "together")) == 2, "two records")
    found = {one.point["model"]["hidden_size"]: one for one in records(folder, "together")}
    assert found[8192].status == "oom", found[8192].reason
    assert found[16].status == "ok", found[16].reason
    assert found[16].environment["job_id"] == found[8192].environment["job_id"]


def test_a_time_limit_gets_twice_the_time(folder, limited):
    def over():
        found = records(folder, "limited")
        return found if any(one.status == "ok" for one in found) else None

    first, *_, last = wait(over, "ok record", 200)
    assert first.status == "timeout"
    assert "time limit of 1 min; submitted again as job" in first.reason
    assert last.status == "ok"
    assert last.environment["minutes"] >= 2
    assert set(states(folder, "limited").values()) == {"ok"}


def test_a_node_that_dies_is_named_and_another_shell_follows_the_logs(folder):
    rest = f"parallel: {{pipeline: 2, data: 2}}\nmeasure: {{iterations: {LONG}}}\ncluster: no-retries\n"
    experiment(folder, "dying", rest)
    assert on_slurm(folder, "dying").code == 0
    launch = Launch(folder, "dying", "no-retries")
    logs = start("logs", "dying.yaml", "-f", cwd=folder)
    assert set(states(folder, "dying").values()) == {"running"}
    victim = launch.hosts[1]
    for process in _processes_of_node(victim, launch):
        os.kill(process, signal.SIGKILL)
    ask("scontrol", "update", f"nodename={victim}", "state=down", "reason=test")
    try:
        found = wait(lambda: "running" not in states(folder, "dying").values() and records(folder, "dying"), "record")
        out, _ = logs.communicate(timeout=30)
    finally:
        logs.kill()
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        subprocess.run(["slurmd", "-N", victim], check=True, env={**os.environ, "PATH": path})
    assert found[0].status == "failed"
    assert victim in found[0].reason or "NODE_FAIL" in found[0].reason
    assert "progress | iteration 1:" in out
    wait(lambda: "down" not in ask("sinfo", "-h", "-N", "-n", victim, "-o", "%t"), "node", 30)


def _processes_of_node(node: str, launch: Launch) -> list[int]:
    """The node's daemon, its step daemons and what they have started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().replace("\0", " ")
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        daemon = command.startswith(("slurmd ", "/usr/sbin/slurmd ")) and node in command
        step = f"SLURMD_NODENAME={node}\0".encode() in environment
        parent = "slurmstepd" in command and f"[{launch.id.partition('_')[0]}" in command and _node_of(process) == node
        if daemon or step or parent:
            found.append(int(process.name))
    return found


def _node_of(process: Path) -> str | None:
    """The node whose spool folder a step daemon works in."""
    try:
        return next(iter(re.findall(r"127\.0\.0\.\d+", str((process / "cwd").readlink()))), None)
    except OSError:
        return None


# What is refused


def _without(tmp_path: Path, *names: str) -> dict[str, str]:
    """An environment in which some of SLURM's tools are not there."""
    (tmp_path / "bin").mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for file in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = tmp_path / "bin" / file.name
            if file.name not in names and not link.exists():
                link.symlink_to(file)
    return {"PATH": str(tmp_path / "bin")}


@pytest.mark.parametrize("why", ["partition", "sbatch", "munge"])
def test_what_slurm_refuses_is_one_message_and_nothing_is_left(folder, tmp_path, why):
    experiment(folder, f"refused-{why}", f"cluster: {'nowhere' if why == 'partition' else 'nodes'}\n")
    environment = {}
    if why == "sbatch":
        environment = _without(tmp_path, "sbatch", "srun", "squeue")
    if why == "munge":
        conf = Path(os.environ["SLURM_CONF"]).read_text()
        (tmp_path / "slurm.conf").write_text(re.sub(r"socket=[^,\s]+", f"socket={tmp_path}/none", conf))
        environment = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    front = start("run", f"refused-{why}.yaml", "--on", "slurm", cwd=folder, **environment)
    out, err = front.communicate(timeout=60)
    assert front.returncode == 2, out + err
    assert len(err.strip().splitlines()) == 1, err
    said = {"partition": "slurm.partition=nowhere", "sbatch": "sbatch is not on this host", "munge": "munged"}
    assert said[why] in err
    assert not list((folder / "results" / "runs" / f"refused-{why}").rglob("job.json"))
