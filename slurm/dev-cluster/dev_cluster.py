"""A real SLURM on this host, for development and tests: the commands start, stop and status. See README.md."""

import argparse
import os
import pwd
import random
import shutil
import socket
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processes import daemons, end, kill_jobs, wait_until

HERE = Path(__file__).resolve().parent
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where the daemons are, for users without it too
PACKAGES = {  # what has to be installed for which commands
    "slurm-wlm munge": ("munged", "slurmctld", "slurmd", "sinfo"),
    "slurmdbd mariadb-server-core mariadb-client-core": ("slurmdbd", "mariadbd", "mariadb-install-db"),
}
FOLDERS = ("state", "spool", "run", "log", "munge", "database")
# A pretended GPU takes a character device of its own, whichever.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PORTS = 100  # that one cluster takes: the controller's, the nodes' after it, the database daemon's as the last
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$database_port
AccountingStoragePass=$root/run/munge.socket
"""
MUNGE_FILES = {"key": "munge/key", "seed": "munge/seed", "pid": "run/munged.pid", "log": "log/munged.log"}
INSTALL_DATABASE = ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
# It keeps nothing beyond the cluster's life, so it need not wait for a disk.
SMALL_DATABASE = ("--skip-networking", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0")
STOPPING = ("slurmd", "slurmctld", "slurmdbd", "mariadbd", "munged")


class UsageError(Exception):
    """Something given or missing, as a sentence for the user."""


class StartError(Exception):
    """A daemon that did not start, with the end of its log."""


@dataclass(frozen=True)
class Shape:
    """What the cluster pretends to be, and the first of its ports."""

    nodes: int
    cpus: int  # of a node
    gpus: int  # of a node
    database: bool
    port: int


def environment(root: Path) -> dict[str, str]:
    """For daemons and SLURM's commands: nothing of the shell's, which may be inside a job of another cluster."""
    kept = {key: os.environ[key] for key in ("HOME", "USER", "LANG", "TZ") if key in os.environ}
    return kept | {
        "PATH": PATH,
        "SLURM_CONF": str(root / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(root / "run/mysql.socket"),
    }


def start(root: Path, shape: Shape) -> None:
    """Leaves a fresh cluster with all nodes idle, or nothing. Raises UsageError or StartError."""
    need_packages(shape.database)
    claim(root)
    stop(root)  # what a crash may have left
    for folder in FOLDERS:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(mode=0o700 if folder in ("munge", "database") else 0o755)
    configure(root, shape)
    try:
        start_daemons(root, shape)
    except BaseException:
        stop(root)
        raise


def need_packages(database: bool) -> None:
    """Raises UsageError where a command is missing."""
    for packages, commands in list(PACKAGES.items())[: 2 if database else 1]:
        missing = [command for command in commands if shutil.which(command, path=PATH) is None]
        if missing:
            install = f"apt-get install -y --no-install-recommends {packages}"
            raise UsageError(f"{', '.join(missing)} not found, which these packages bring: {install}")


def claim(root: Path) -> None:
    """Makes the folder, or takes over that of an earlier cluster. Raises UsageError where it is something else."""
    room = 107 - len("/spool/127.0.0.11/127.0.0.11_5000000.4294967291")  # the longest name of a socket inside
    if len(str(root)) > room:
        raise UsageError(f"the folder {root} has too long a name for sockets in it; up to {room} characters work")
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()) and not (root / "slurm.conf").exists():
        raise UsageError(f"the folder {root} holds something else; --root or SUITE_DEV_CLUSTER names another")


def configure(root: Path, shape: Shape) -> None:
    """Writes what the daemons read, and `env` for shells."""
    names = f"127.0.0.[11-{10 + shape.nodes}]"
    version = subprocess.run(["slurmctld", "-V"], env=environment(root), capture_output=True, text=True).stdout
    release = tuple(int(part) for part in version.split()[-1].split(".")[:2])
    # The option moved, and each of the two releases refuses the other's.
    signal_option = "SlurmctldParameters=preempt_" if release < (23, 2) else "PreemptParameters="
    values = {
        "root": root,
        "host": socket.gethostname().partition(".")[0],
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "port": shape.port,
        "first_job": 1000 * random.randrange(1, 5000),
        "preemption_signal": f"{signal_option}send_user_signal",
        "accounting": "",
        "nodes": names,
        "ports": f"[{shape.port + 1}-{shape.port + shape.nodes}]",
        "cpus": shape.cpus,
        "gres": f"Gres=gpu:{shape.gpus}" if shape.gpus else "",
        "database_port": shape.port + PORTS - 1,
    }
    if shape.database:
        values["accounting"] = string.Template(ACCOUNTING).substitute(values)
        write(root / "slurmdbd.conf", filled("slurmdbd.conf", values), mode=0o600)
    write(root / "slurm.conf", filled("slurm.conf", values))
    devices = f"NodeName={names} Name=gpu File={','.join(DEVICES[: shape.gpus])}\n" if shape.gpus else ""
    write(root / "gres.conf", devices)
    # Nothing uses cgroups, but slurmd loads a plugin for them all the same; this one loads wherever they are not there.
    write(root / "cgroup.conf", "CgroupPlugin=cgroup/v1\n")
    write(root / "env", f"export SLURM_CONF={root / 'slurm.conf'}\n")
    write(root / "munge/key", os.urandom(64).hex(), mode=0o600)


def filled(template: str, values: dict[str, object]) -> str:
    """A file of this folder with the values in the places of their names."""
    return string.Template((HERE / template).read_text()).substitute(values)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file anew; nobody whom the mode excludes ever sees it."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, mode), "w") as file:
        file.write(text)


def start_daemons(root: Path, shape: Shape) -> None:
    """Starts everything and waits for the nodes. Raises StartError."""
    munge = [f"--{kind}-file={root}/{file}" for kind, file in MUNGE_FILES.items()]
    # Forced, as the folder may be inside a private one; then the jobs are its owner's.
    launch(root, "munged", "--force", f"--socket={root}/run/munge.socket", *munge)
    if shape.database:
        start_database(root)
    launch(root, "slurmctld", "-i")
    for node in range(shape.nodes):
        launch(root, "slurmd", "-N", f"127.0.0.{11 + node}")
    wait_for(root, "slurmctld", lambda: idle(root) == shape.nodes)


def start_database(root: Path) -> None:
    """Starts a MariaDB of the cluster's own and the accounting daemon. Raises StartError."""
    user = f"--user={pwd.getpwuid(os.geteuid()).pw_name}"
    where = f"--datadir={root}/database"
    launch(root, "mariadb-install-db", "--no-defaults", user, where, *INSTALL_DATABASE)
    files = (
        f"--socket={root}/run/mysql.socket",
        f"--pid-file={root}/run/mariadbd.pid",
        f"--log-error={root}/log/mariadbd.log",
    )
    # Not left to slurmdbd, whose second connection breaks with some of the client's libraries (11.8.9).
    write(root / "database.sql", "create database slurm_acct_db;\n")
    with open(root / "log/start.log", "a") as log:
        mariadb = subprocess.Popen(
            ["mariadbd", "--no-defaults", user, where, f"--init-file={root}/database.sql", *files, *SMALL_DATABASE],
            env=environment(root), cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    socket_file = root / "run/mysql.socket"
    if not wait_until(lambda: socket_file.exists() or mariadb.poll() is not None, 60) or mariadb.poll() is not None:
        raise StartError(f"mariadbd did not start; {tail(root, 'mariadbd')}")
    launch(root, "slurmdbd")
    wait_for(root, "slurmdbd", lambda: ask(root, "sacctmgr", "-n", "list", "cluster") is not None)


def launch(root: Path, *command: str) -> None:
    """Runs a command that puts itself into the background, or ends. Raises StartError."""
    with open(root / "log/start.log", "a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        done = subprocess.run(
            command, env=environment(root), cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if done.returncode:
        raise StartError(f"{command[0]} did not start; {tail(root, 'start')}")


def wait_for(root: Path, daemon: str, ready: Callable[[], bool]) -> None:
    """Waits until it is ready. Raises StartError once the daemon gave up, or after a minute."""
    log = root / "log" / f"{daemon}.log"

    def gave_up() -> bool:
        return log.exists() and "fatal: " in log.read_text(errors="replace")

    wait_until(lambda: ready() or gave_up(), 60)
    if not ready():
        raise StartError(f"{daemon} {'gave up' if gave_up() else 'is not ready after a minute'}; {tail(root, daemon)}")


def tail(root: Path, log: str) -> str:
    """The end of a log, after its name."""
    file = root / "log" / f"{log}.log"
    lines = file.read_text(errors="replace").splitlines()[-8:] if file.exists() else []
    return "\n  ".join([f"the end of {file}:", *lines])


def ask(root: Path, *command: str) -> str | None:
    """What one of SLURM's commands says; None where it fails."""
    done = subprocess.run(command, env=environment(root), capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def idle(root: Path) -> int:
    """How many nodes are idle."""
    return len((ask(root, "sinfo", "-h", "-N", "-t", "idle", "-p", "main", "-o", "%N") or "").split())


def running(root: Path) -> bool:
    """Whether a cluster of this folder is there, be it too busy to answer."""
    return bool(daemons(root, "slurmctld"))


def stop(root: Path) -> bool:
    """Ends the cluster's jobs and daemons, whatever state they are in; whether there were any."""
    found = False
    for name in STOPPING:
        pids = daemons(root, name)
        found = found or bool(pids)
        if name == "slurmd":
            kill_jobs(root)
        end(pids)
    kill_jobs(root)  # what began meanwhile
    return found


def status(root: Path) -> None:
    """Prints the nodes, the queue and the daemons' process ids."""
    for command in (("sinfo", "-N", "-l"), ("squeue",)):
        print((ask(root, *command) or "").strip(), end="\n\n")
    for name in reversed(STOPPING):
        if pids := daemons(root, name):
            print(name, *pids)
    print(f"\n{(root / 'env').read_text()}", end="")


def first_free_port(nodes: int) -> int:
    """The first port of a cluster such that all of its are free."""
    return next(port for port in range(17000, 30000, PORTS) if not taken(port, nodes))


def taken(port: int, nodes: int) -> list[int]:
    """Which of the cluster's ports something listens on."""
    found = []
    for one in (*range(port, port + nodes + 1), port + PORTS - 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", one))
            except OSError:
                found.append(one)
    return found


def whole(low: int, high: int) -> Callable[[str], int]:
    """A type of argument: a whole number of the range."""

    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"got {text!r}; it must be a whole number from {low} to {high}")
        return int(text)

    return read


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="slurm/dev-cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (
        ("start", "start a cluster, wait for its nodes, print the line that makes a shell use it"),
        ("stop", "end its jobs and daemons"),
        ("status", "print nodes, queue and processes; exit code 1 where no cluster runs"),
    ):
        command = commands.add_parser(
            name, help=does, description=does, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        default = os.environ.get("SUITE_DEV_CLUSTER") or Path(
            tempfile.gettempdir(), f"suite-dev-cluster-{os.geteuid()}"
        )
        command.add_argument("--root", type=Path, default=default, help="folder of the cluster (SUITE_DEV_CLUSTER)")
        if name == "start":
            command.add_argument("--nodes", type=whole(1, 64), default=4, help="named 127.0.0.11, 127.0.0.12 ...")
            command.add_argument("--cpus", type=whole(1, 256), default=4, help="that each node pretends to have")
            command.add_argument(
                "--gpus", type=whole(0, len(DEVICES)), default=2, help="that each node pretends to have"
            )
            command.add_argument("--accounting", choices=("none", "database"), default="none", help="what sacct asks")
            command.add_argument(
                "--port",
                type=whole(1024, 65535 - PORTS),
                help=f"the first of {PORTS} ports; left out, the first that are free from 17000",
            )
    return parser.parse_args()


def main() -> int:
    """Runs a command; the exit code."""
    given = arguments()
    root = given.root.resolve()
    if root.exists() and root.stat().st_uid != os.geteuid():
        print(f"the folder {root} is another user's; --root or SUITE_DEV_CLUSTER names another", file=sys.stderr)
        return 2
    if given.command == "stop":
        print(f"stopped the cluster in {root}" if stop(root) else f"no cluster runs in {root}", file=sys.stderr)
        return 0
    if given.command == "status":
        if not running(root) or ask(root, "sinfo") is None:
            print(f"no cluster answers in {root}; slurm/dev-cluster/start starts one", file=sys.stderr)
            return 1
        status(root)
        return 0
    try:
        if running(root):
            print(f"a cluster runs in {root} already; to change it, stop it first", file=sys.stderr)
        else:
            port = given.port or first_free_port(given.nodes)
            if used := taken(port, given.nodes):
                raise UsageError(
                    f"--port {port}: port {used[0]} is taken; --port {first_free_port(given.nodes)} would work"
                )
            start(root, Shape(given.nodes, given.cpus, given.gpus, given.accounting == "database", port))
    except (UsageError, StartError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print((root / "env").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
