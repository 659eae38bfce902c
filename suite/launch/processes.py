"""Processes of this host: whether one lives, ending when another ends, and interrupts."""

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2
_INTERRUPTS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def take_interrupts() -> None:
    """Have a closed terminal and a request to end interrupt this process as Ctrl-C does, unless they are ignored."""
    for number in _INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts meanwhile, such as the second of two impatient ones; they come to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def alive(process: int) -> bool:
    """Whether the process is there and is more than a zombie."""
    fields = _fields(process)
    return bool(fields) and fields[0] not in "ZX"


def stamp(process: int) -> str:
    """The process's id and when it started, which no later process with the same id shares."""
    fields = _fields(process)
    return f"{process} {fields[19]}" if fields else str(process)


def _fields(process: int) -> list[str]:
    """What the kernel tells of a process, from its state on (proc(5), field 3 of `stat`); empty where it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[-1].split()
    except OSError:
        return []


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def end_with(process: int) -> None:
    """End this process, and all that end with it, soon after another one that is not its parent."""
    threading.Thread(target=_watch, args=(process,), daemon=True).start()


def _watch(process: int) -> None:
    while alive(process):
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
