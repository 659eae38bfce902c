"""The SLURM that the tests here are for: whichever SLURM_CONF names, such as `make slurm-start` starts."""

import os
import subprocess

import pytest


@pytest.fixture(scope="session")
def slurm():
    """Skips, with the reason, where no SLURM answers."""
    conf = os.environ.get("SLURM_CONF")
    if conf is None or not os.path.exists(conf):  # sinfo would wait a minute for the file
        pytest.skip(f"SLURM_CONF ({conf or 'not set'}) names no cluster; make test-slurm starts one")
    try:
        sinfo = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("sinfo is not installed; apt-get install slurm-wlm munge")
    if sinfo.returncode:
        pytest.skip(f"the cluster of SLURM_CONF={conf} does not answer: {sinfo.stderr.strip()}")
