"""Whether a cluster is as its profile says, as far as that can be seen from this host."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from suite.experiment.cluster import Cluster
from suite.experiment.submission import Slurm
from suite.launch.doctor import Finding
from suite.launch.slurm.states import CannotAskError, run_tool

_TOOLS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")


def examine_cluster(cluster: Cluster) -> Iterator[Finding]:
    """Look at the profile, SLURM's tools, its controller, and what the profile asks for."""
    hardware = cluster.hardware
    known = None if hardware is None else f"{hardware.device.name}, {hardware.node_devices} per node"
    yield Finding(
        "hardware",
        True if known else None,
        known or "none in the profile: nothing is predicted, limits are slurm.minutes",
    )
    if cluster.slurm is None:
        yield Finding("slurm", None, "no section slurm in the profile: nothing is submitted there")
        return
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    here = "all of " + ", ".join(_TOOLS)
    yield Finding(
        "tools", not missing, f"missing here: {', '.join(missing)}; a login node has them" if missing else here
    )
    if missing:
        return
    try:
        yield Finding("controller", True, run_tool(["scontrol", "ping"]).strip().replace("\n", "; "))
        yield from _configuration(cluster.slurm)
        yield from _partition(cluster.slurm, cluster.max_ranks)
    except CannotAskError as error:
        yield Finding("controller", False, f"{error}; is munged running, and SLURM_CONF right?")
    yield from _container(cluster.slurm)


def _configuration(slurm: Slurm) -> Iterator[Finding]:
    text = run_tool(["scontrol", "show", "config"])
    values = dict(re.findall(r"^(\w+) *= *(.*?) *$", text, re.MULTILINE))
    most = int(values.get("MaxArraySize", 1001))
    fits = slurm.max_array < most
    yield Finding(
        "arrays",
        fits,
        f"slurm.max_array={slurm.max_array}, MaxArraySize={most}" + ("" if fits else f"; {most - 1} would work"),
    )
    kept = values.get("AccountingStorageType", "").removeprefix("accounting_storage/") not in ("", "none", "(null)")
    forgotten = f"none is kept: SLURM forgets ended jobs after MinJobAge={values.get('MinJobAge', '300 sec')}"
    yield Finding("accounting", True if kept else None, "kept" if kept else forgotten)
    if slurm.retries:
        puts_back = values.get("JobRequeue") == "1" or "REQUEUE" in values.get("PreemptMode", "")
        yield Finding(
            "requeue", True if puts_back else None, f"PreemptMode={values.get('PreemptMode')}, jobs ask for it"
        )


def _partition(slurm: Slurm, ranks: int) -> Iterator[Finding]:
    chosen = ["-p", slurm.partition] if slurm.partition else []
    rows = [line.split("|") for line in run_tool(["sinfo", "-h", *chosen, "-o", "%R|%D|%l|%G|%c"]).splitlines()]
    if not rows:
        names = sorted(set(run_tool(["sinfo", "-h", "-o", "%R"]).split()))
        yield Finding("partition", False, f"slurm.partition={slurm.partition} is not there; known: {', '.join(names)}")
        return
    nodes = sum(int(count) for name, count, *_ in rows if name == rows[0][0])
    need = -(-ranks // slurm.ranks_per_node)
    shown = f"{rows[0][0]}: {nodes} nodes, limit {rows[0][2]}"
    enough = f"; max_ranks={ranks} takes {need}"
    yield Finding("partition", nodes >= need, shown + enough + ("" if nodes >= need else ", which are not there"))
    wanted = slurm.ranks_per_node * slurm.gpus_per_rank
    if wanted:
        gpus = max((int(n) for row in rows for n in re.findall(r"gpu[^,(]*?:(\d+)(?:\(|,|$)", row[3])), default=0)
        yield Finding("gpus", gpus >= wanted, f"{gpus} per node by SLURM; a full node of ranks takes {wanted}")
    cpus = slurm.ranks_per_node * slurm.cpus_per_rank
    most = max(int(row[4].rstrip("+")) for row in rows)
    yield Finding("cpus", most >= cpus, f"{most} per node by SLURM; a full node of ranks takes {cpus}")


def _container(slurm: Slurm) -> Iterator[Finding]:
    if slurm.container is None:
        return
    try:
        pyxis = "--container-image" in run_tool(["srun", "--help"])
    except CannotAskError:
        pyxis = False
    yield Finding("pyxis", pyxis, "srun takes --container-image" if pyxis else "srun knows no --container-image")
    image = slurm.container.image
    if image.startswith(("/", "./")):
        there = Path(image).exists()
        yield Finding("image", there, image if there else f"{image} is not there; enroot import makes one")
