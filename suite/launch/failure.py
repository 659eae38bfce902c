"""Why a point failed: the cause among the errors of its ranks, not a victim's complaint."""

import signal
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from suite.launch.job import JobFolder
from suite.launch.other_nodes import Exits
from suite.launch.processes import alive
from suite.records.schema import Status

_PATIENCE = 0.5  # seconds in which a killed process is seen to be gone
STALLED = "Stalled"  # the kind of the watchdog's error
_MEMORY_KINDS = ("OutOfMemoryError", "MemoryError")
_MEMORY_MESSAGE = "can't allocate memory"  # of torch's allocator on a CPU, which raises a plain RuntimeError


def describe(error: BaseException, folder: JobFolder, rank: int, here: Collection[int]) -> dict[str, Any]:
    """A rank's own error, with those ranks of this host, `here`, that had vanished without leaving one."""
    lost_peer = isinstance(error, RuntimeError) and "onnection" in str(error)
    deadline = time.monotonic() + (_PATIENCE if lost_peer else 0.0)
    moment = time.time()
    vanished = _vanished(folder, rank, here)
    while not vanished and time.monotonic() < deadline:
        time.sleep(0.02)
        vanished = _vanished(folder, rank, here)
    return {
        "time": moment,
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "vanished": vanished,
    }


def _vanished(folder: JobFolder, own: int, here: Collection[int]) -> list[int]:
    """Ranks of this host that are gone or dead and left no error of their own."""
    excused = {error["rank"] for error in folder.errors()}
    return [
        rank
        for rank, process in sorted(folder.processes(here).items())
        if rank not in excused and rank != own and not alive(process)
    ]


def cause(folder: JobFolder, exits: Mapping[int, Exits], nodes: Sequence[str]) -> tuple[Status, str]:
    """The status and the reason of a failed launch.

    `exits` are what the supervisors saw, by node; `nodes` the names of all nodes. The earliest error counts, unless its
    rank only noticed that another had vanished.
    """
    status, reason = _cause(folder, exits)
    if silent := [name for node, name in enumerate(nodes) if node not in exits]:
        reason = f"{', '.join(silent)} went away, with the task that watches the ranks there\n\n{reason}"
    return status, reason


def _cause(folder: JobFolder, exits: Mapping[int, Exits]) -> tuple[Status, str]:
    errors = folder.errors()
    codes = {rank: code for one in exits.values() for rank, code in one.codes.items()}
    killed = [rank for rank, code in codes.items() if code < 0 and rank not in {e["rank"] for e in errors}]
    vanished = killed or [rank for error in errors[:1] for rank in error["vanished"]]
    if vanished:
        reason = _killed(vanished[0], codes.get(vanished[0]), errors)
        if limit := next((one.memory for one in exits.values() if one.memory), None):
            return "oom", f"{limit}; {reason}"
        return "failed", reason
    if errors:
        first = errors[0]
        oom = first["kind"] in _MEMORY_KINDS or _MEMORY_MESSAGE in first["message"]
        status: Status = "oom" if oom else "failed"
        reason = f"rank {first['rank']}: {first['kind']}: {first['message']}\n\n{first['traceback']}"
        if first["kind"] == STALLED and len(exits) > 1:  # the rank saw its own node's only
            reason += "and of every node, when it ended its ranks:\n" + "\n".join(one.account for one in exits.values())
        return status, reason
    shown = ", ".join(f"rank {rank} exit code {code}" for rank, code in sorted(codes.items()))
    return "failed", f"a rank ended without leaving an error: {shown or 'no exit code known'}"


def _killed(rank: int, code: int | None, errors: list[dict[str, Any]]) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "was killed"
    reason = f"rank {rank} {how}; it left no traceback (a signal from outside, or the system was out of memory)"
    if errors:
        reason += f"\n\nrank {errors[0]['rank']} noticed it:\n{errors[0]['traceback']}"
    return reason


def memory_kills() -> dict[Path, int]:
    """How many processes of this control group the kernel has ended for want of memory, by the file that says it."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            folder = Path("/sys/fs/cgroup", controllers) / group.lstrip("/")
            for file in (folder / "memory.events", folder / "memory.oom_control"):
                with suppress(OSError):
                    counts = dict(one.rsplit(" ", 1) for one in file.read_text().splitlines())
                    found[file] = int(counts.get("oom_kill", 0))
    return found


def out_of_memory_since(before: Mapping[Path, int]) -> str | None:
    """Whether the kernel has ended a process of the control group for want of memory since then, in words."""
    for file, count in memory_kills().items():
        if (more := count - before.get(file, 0)) > 0:
            return f"the job's control group was out of memory ({file}: oom_kill {more} more)"
    return None
