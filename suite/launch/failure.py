"""Why a point failed: the cause among the errors of its ranks, not a victim's complaint."""

import signal
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from suite.launch.job import JobFolder
from suite.launch.processes import alive
from suite.records.schema import Status

_PATIENCE = 0.5  # seconds in which a killed process is seen to be gone
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


def cause(folder: JobFolder, exit_codes: dict[int, int]) -> tuple[Status, str]:
    """The status and the reason of a failed point.

    `exit_codes` are what the supervisor saw, by rank; negative for a signal. The earliest error counts, unless its
    rank only noticed that another had vanished.
    """
    errors = folder.errors()
    killed = [rank for rank, code in exit_codes.items() if code < 0 and rank not in {e["rank"] for e in errors}]
    vanished = killed or [rank for error in errors[:1] for rank in error["vanished"]]
    if vanished:
        reason = _killed(vanished[0], exit_codes.get(vanished[0]), errors)
        if (limit := _out_of_memory()) is not None:
            return "oom", f"{limit}; {reason}"
        return "failed", reason
    if errors:
        first = errors[0]
        oom = first["kind"] in _MEMORY_KINDS or _MEMORY_MESSAGE in first["message"]
        status: Status = "oom" if oom else "failed"
        return status, f"rank {first['rank']}: {first['kind']}: {first['message']}\n\n{first['traceback']}"
    codes = ", ".join(f"rank {rank} exit code {code}" for rank, code in sorted(exit_codes.items()))
    return "failed", f"a rank ended without leaving an error: {codes or 'no exit code known'}"


def _killed(rank: int, code: int | None, errors: list[dict[str, Any]]) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "was killed"
    reason = f"rank {rank} {how}; it left no traceback (a signal from outside, or the system was out of memory)"
    if errors:
        reason += f"\n\nrank {errors[0]['rank']} noticed it:\n{errors[0]['traceback']}"
    return reason


def _out_of_memory() -> str | None:
    """Whether the kernel ended a process of this job's control group because its memory was used up, in words."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        root = Path("/sys/fs/cgroup", *([] if not controllers else ["memory"]))
        if controllers not in ("", "memory"):
            continue
        folder = root / group.lstrip("/")
        for file in (folder / "memory.events", folder / "memory.oom_control"):
            with suppress(OSError):
                counts = dict(one.rsplit(" ", 1) for one in file.read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    return f"the job's control group was out of memory ({file}: oom_kill {counts['oom_kill']})"
    return None
