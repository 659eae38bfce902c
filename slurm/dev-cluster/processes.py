"""The processes of a cluster's folder: its daemons by their pid files, and what its jobs started, from /proc."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not (true := done()) and time.monotonic() < end:
        time.sleep(0.02)
    return true


def daemons(root: Path, name: str) -> list[int]:
    """Process ids of the cluster's running daemons of that name, from `run/NAME.pid` and `run/NAME.NODE.pid`."""
    pids = []
    for file in sorted((root / "run").glob(f"{name}.*pid")):
        text = file.read_text().strip()
        if text and _name(int(text)) == name:  # after a crash the id may be another process's
            pids.append(int(text))
    return pids


def end(pids: Iterable[int], seconds: float = 5.0) -> None:
    """Terminates the processes, and kills what is still there after so many seconds."""
    names = {pid: name for pid in pids if (name := _name(pid))}

    def left() -> list[int]:
        return [pid for pid, name in names.items() if _name(pid) == name]

    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        if wait_until(lambda: not left(), seconds):
            return


def kill_jobs(root: Path, seconds: float = 5.0) -> None:
    """Kills the processes of the cluster's jobs until there are none."""

    def none_left() -> bool:
        pids = _of_jobs(root)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(none_left, seconds)


def _of_jobs(root: Path) -> set[int]:
    """Every slurmstepd, all below them, and those that outlived theirs, which still have a job's environment.

    Not this process and those above it, should it have been started inside a job.
    """
    parents = {pid: parent for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (parent := _parent(pid))}
    found = {pid for pid in parents if _is_step(pid, root) or _is_task(pid, root)}
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    own = os.getpid()
    while own in parents:
        found.discard(own)
        own = parents[own]
    return found


def _is_step(pid: int, root: Path) -> bool:
    try:
        return _name(pid) == "slurmstepd" and Path(f"/proc/{pid}/cwd").readlink() == root / "log"
    except OSError:  # ended, or another user's
        return False


def _is_task(pid: int, root: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = f"SLURM_CONF={root / 'slurm.conf'}".encode() in environment
    return ours and any(entry.startswith(b"SLURM_JOB_ID=") for entry in environment)


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Name, state and parent; None where it is gone, or a zombie that nobody has reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return None if state in "ZX" else (name, state, int(parent))


def _name(pid: int) -> str | None:
    stat = _stat(pid)
    return stat and stat[0]


def _parent(pid: int) -> int | None:
    stat = _stat(pid)
    return stat and stat[2]
