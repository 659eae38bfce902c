"""Triton's kernels compile for GPUs where none is, and what they need of one is in the committed table."""

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from suite.kernels.ahead_of_time import ARCHITECTURES, KERNELS, TYPES

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import json
from dataclasses import asdict
from suite.kernels.ahead_of_time import compile_all
print(json.dumps([asdict(one) for one in compile_all(types=("bf16",))]))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is in the test extra")
def test_every_kernel_compiles_for_both_architectures_and_spills_nothing():
    """In a process of its own: here kernels may have been defined for the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert Counter(one["kernel"] for one in compiled) == dict.fromkeys(KERNELS, len(ARCHITECTURES))
    for one in compiled:
        assert one["stack_bytes"] == 0, one
        assert one["threads_at_once"] >= 512, one


def test_every_kernel_that_is_defined_is_compiled():
    defined = set()
    for file in (ROOT / "kernels").glob("*_triton.py"):
        found = re.findall(r"^@triton\.jit\ndef (\w+_kernel)\(", file.read_text(), re.MULTILINE)
        defined |= {f"{file.stem}.{name}" for name in found}
    assert {name.partition("+")[0] for name in KERNELS} == defined


def test_the_committed_table_is_of_these_kernels():
    with (ROOT / "kernels" / "compiled.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {
        (name, number_type, str(architecture))
        for name, (arguments, _) in KERNELS.items()
        for number_type in (TYPES if "T" in arguments else ("fp32",))
        for architecture in ARCHITECTURES
    }
    assert {(row["kernel"], row["type"], row["architecture"]) for row in rows} == wanted


def test_the_check_for_a_gpu_says_that_there_is_none_and_what_works_without():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    done = subprocess.run(["bash", ROOT / "checks" / "gpu.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "checks/gpu.sh: torch sees no CUDA GPU; --dry-run would work"
