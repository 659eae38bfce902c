"""Where a number comes from: the suite's revision, the host, the device and the libraries."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import suite

PACKAGE = Path(suite.__file__).parent


@cache
def revision() -> str:
    """The suite's short git commit, with `-dirty` where tracked files differ; its version outside a checkout."""
    if not _git("ls-files", "--error-unmatch", "__init__.py"):
        return f"v{suite.__version__}"
    commit = _git("rev-parse", "--short=10", "HEAD")
    if not commit:
        return f"v{suite.__version__}-uncommitted"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@cache
def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def libraries() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "suite": suite.__version__}
    for name in ("torch", "triton", "apex", "submitit", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def host_environment() -> dict[str, Any]:
    """What a record says of the software and the host."""
    name = revision()
    return {
        "revision": name,
        "dirty": name.endswith("-dirty"),
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cores": cores(),
        "libraries": libraries(),
    }
