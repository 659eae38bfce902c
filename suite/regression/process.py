"""The suite as a process of its own: what it measures must not depend on whoever asks for it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

_RUN = "from suite.cli import main; main()"


def run_suite(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run `suite ARGUMENTS` with some more environment; the last that it said of what went wrong, or its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, *arguments],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = process.communicate()
    except KeyboardInterrupt:  # it was interrupted too, and ends its ranks
        process.wait()
        raise
    return (said.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
