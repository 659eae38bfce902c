"""The cluster of `slurm/dev-cluster`: what jobs see of it, and what is left of it."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

COMMANDS = Path(__file__).resolve().parents[2] / "slurm" / "dev-cluster"

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]


def ask(*command: str, conf: str | None = None) -> str:
    environment = {**os.environ, **({"SLURM_CONF": conf} if conf else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def until(true, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def test_a_job_of_two_nodes_runs_on_two_and_sees_its_gpus(tmp_path):
    script = r'srun sh -c "echo \$SLURMD_NODENAME \$SLURM_PROCID \$CUDA_VISIBLE_DEVICES"'
    shape = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--gres=gpu:2")
    job = ask("sbatch", "--parsable", "--wait", *shape, f"--output={tmp_path}/out", f"--wrap={script}")
    ranks = sorted(line.split() for line in (tmp_path / "out").read_text().splitlines())
    assert sorted(rank for _, rank, _ in ranks) == ["0", "1"]
    assert len({node for node, _, _ in ranks}) == 2
    assert {gpus for _, _, gpus in ranks} == {"0,1"}
    said = ask("scontrol", "show", "job", job).split()
    assert {"JobState=COMPLETED", "NumNodes=2", "CPUs/Task=3", "TresPerNode=gres:gpu:2"} <= set(said)


@pytest.fixture
def second(tmp_path_factory):
    """A cluster of one node beside the first, on ports of its own: its folder and its SLURM_CONF."""
    root = tmp_path_factory.mktemp("second")  # a short name, as sockets in it need
    export = ask(str(COMMANDS / "start"), f"--root={root}", "--nodes=1", "--cpus=1", "--gpus=0")
    yield root, export.removeprefix("export SLURM_CONF=")
    ask(str(COMMANDS / "stop"), f"--root={root}")


def test_an_urgent_job_takes_the_node_of_another_which_is_told_and_waits_again(second, tmp_path):
    _, conf = second
    assert ask("sinfo", "-h", "-p", "main", "-o", "%D %T", conf=conf) == "1 idle"
    told = 'trap "touch told; scontrol requeue $SLURM_JOB_ID" USR2; touch started; sleep 1000 & wait; wait'
    low = ask("sbatch", "--parsable", "--signal=B:USR2@60", f"--chdir={tmp_path}", f"--wrap={told}", conf=conf)
    assert until((tmp_path / "started").exists)
    urgent = ask("sbatch", "--parsable", "--partition=urgent", "--wrap=sleep 1000", f"--chdir={tmp_path}", conf=conf)

    def states() -> list[str]:
        return [ask("squeue", "-h", "-o", "%T", "-j", job, conf=conf) for job in (low, urgent)]

    assert until(lambda: states() == ["PENDING", "RUNNING"]), states()
    assert (tmp_path / "told").exists()
    assert "Restarts=1" in ask("scontrol", "show", "job", low, conf=conf)


def names_of_processes_in(folder: Path) -> set[str]:
    """Of those that work in the folder or have a file in it open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(link.readlink().is_relative_to(folder) for link in (process / "cwd", *(process / "fd").iterdir())):
                found.add((process / "comm").read_text().strip())
    return found


def test_stop_leaves_no_process(second):
    root, conf = second
    job = "trap '' TERM; (setsid sleep 1000 &); touch started; sleep 1000"  # one has left the job's tree of processes
    ask("sbatch", f"--chdir={root}", f"--wrap={job}", conf=conf)
    assert until((root / "started").exists)
    assert names_of_processes_in(root) >= {"munged", "slurmctld", "slurmd", "slurmstepd", "slurm_script", "sleep"}
    ask(str(COMMANDS / "stop"), f"--root={root}")
    assert names_of_processes_in(root) == set()
    status = subprocess.run([COMMANDS / "status", f"--root={root}"], capture_output=True, text=True)
    assert (status.returncode, status.stdout) == (1, "")
    assert status.stderr.startswith(f"no cluster answers in {root};")


def test_the_nodes_of_the_running_cluster_are_up():
    nodes = ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").splitlines()
    assert len(nodes) >= 2
    assert {state for _, state in map(str.split, nodes)} <= {"idle", "mix", "alloc", "comp"}
