"""Revisions of the suite side by side: a git worktree for each, and launches by the code in it."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.experiment.errors import BadInput, Problem
from suite.measure.provenance import PACKAGE
from suite.regression.process import run_suite


@dataclass(frozen=True)
class Checkout:
    """A revision's tree."""

    revision: str  # the short commit
    path: Path

    def launch(self, file: Path, on: str, results: Path) -> str:
        """Run the one point of an experiment file by this tree's code; the last that it said of what went wrong.

        The working folder stays the user's: cluster profiles and data are found there, whatever the revision.
        """
        above = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(self.path), *([above] if above else [])])
        arguments = ["run", str(file), "--on", on, "--fresh", "--json", "--results", str(results)]
        return run_suite(arguments, {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"})


def commit(revision: str) -> str:
    """The short commit of the suite's repository that a revision stands for. Raises BadInput where there is none."""
    if (
        _git("rev-parse", "--is-inside-work-tree").returncode
        or _git("ls-files", "--error-unmatch", "cli.py").returncode
    ):
        message = (
            "the suite was not installed from a git checkout, which has the revisions; pip install --editable would"
        )
        raise BadInput([Problem(message)])
    found = _git("rev-parse", "--verify", "--quiet", "--short=10", f"{revision}^{{commit}}")
    if found.returncode:
        raise BadInput([Problem(f"'{revision}' is no revision of {PACKAGE.parent}; HEAD~1 would work")])
    return found.stdout.strip()


def changed() -> bool:
    """Whether tracked files differ from the last commit, which no revision has."""
    return bool(_git("status", "--porcelain", "--untracked-files=no", "--", ":/").stdout)


@contextlib.contextmanager
def checked_out(revision: str, name: str) -> Iterator[Checkout]:
    """A worktree of a commit while the block runs."""
    with tempfile.TemporaryDirectory(prefix=f"suite-{name}-") as folder:
        path = Path(folder) / "tree"
        made = _git("worktree", "add", "--detach", str(path), revision)
        if made.returncode:
            raise BadInput([Problem(f"git cannot check {revision} out: {made.stderr.strip().splitlines()[-1]}")])
        try:
            yield Checkout(revision, path)
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=False)
