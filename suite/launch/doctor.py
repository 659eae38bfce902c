"""What this machine can run, and what is missing."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from suite.measure.provenance import cores, cpu_model, revision


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `ok` is None for what is optional and absent."""

    what: str
    ok: bool | None
    detail: str


def examine() -> list[Finding]:
    """Look at the interpreter, the libraries, the processors and the tools around them."""
    return [
        Finding("suite", True, revision()),
        Finding("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        *(_library(name) for name in ("torch", "submitit", "pandas", "matplotlib")),
        Finding("cores", True, f"{cores()} ({cpu_model()}); up to {cores()} ranks without oversubscription"),
        _memory(),
        _gpus(),
        _optional("triton", "triton", "pip install triton"),
        _optional("apex", "apex.normalization", "build NVIDIA's apex from source; never pip install apex"),
        _tool("sbatch", "SLURM's client, for --on slurm; suite doctor --cluster NAME looks at a cluster"),
        _tool("git", "records then carry the package's version instead of a commit"),
    ]


def _library(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, f"not installed; pip install {name}")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", True, f"{total / 2**30:.1f} GiB")


def _gpus() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("gpus", None, "none (no nvidia-smi); ranks run on the CPU with gloo")
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    names = done.stdout.strip().splitlines()
    if done.returncode or not names:
        return Finding("gpus", None, f"nvidia-smi found none: {(done.stderr or done.stdout).strip()[:80]}")
    return Finding("gpus", True, f"{len(names)}: " + "; ".join(names))


def _optional(what: str, module: str, how: str) -> Finding:
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    return Finding(what, True if found else None, "importable" if found else f"not there (optional): {how}")


def _tool(name: str, note: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, True if path else None, path or f"not there (optional): {note}")
