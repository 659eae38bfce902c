"""The SLURM that the tests here are for: whichever SLURM_CONF names, such as `make slurm-start` starts."""

import os
import subprocess

import pytest


@pytest.fixture(scope="session")
def slurm():
    """Skips, with the reason, where no SLURM answers."""
    if "SLURM_CONF" not in os.environ:
        pytest.skip("SLURM_CONF names no cluster; make test-slurm starts one")
    try:
        sinfo = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("sinfo is not installed; apt-get install slurm-wlm munge")
    if sinfo.returncode:
        pytest.skip(f"the cluster of SLURM_CONF={os.environ['SLURM_CONF']} does not answer: {sinfo.stderr.strip()}")
