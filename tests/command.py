"""The command line in a test: called in this process, or started as a process of its own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from suite.cli import main

FRONT = (sys.executable, "-c", "from suite.cli import main; main()")
NO_COMMIT = {"GIT_DIR": os.devnull}  # the revision is then the version, whatever happens to the checkout


@dataclass(frozen=True)
class Answer:
    """What a command did: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: str) -> Answer:
    """`suite ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["suite", *arguments]),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Answer(code, out.getvalue(), err.getvalue())


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """`suite ARGUMENTS` as a process that leads a process group, as at a terminal."""
    return subprocess.Popen(
        [*FRONT, *arguments],
        cwd=cwd,
        env={**os.environ, **NO_COMMIT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str, cwd: Path, timeout: float = 180, **environment: str) -> Answer:
    """`suite ARGUMENTS` as a process, until it ends."""
    process = start(*arguments, cwd=cwd, **environment)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Answer(process.returncode, out, err)
