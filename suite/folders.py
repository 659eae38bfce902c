"""Where results lie, and which folders of them a command reads."""

from collections.abc import Sequence
from pathlib import Path

from suite.ending import refuse

RUNS = Path("results/runs")


def results_folders(results: Sequence[Path] | None) -> list[Path]:
    """The results folders to read, none of which may be a file."""
    folders = list(results or [RUNS])
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            refuse(f"--results {folder}: it is a file; a folder, such as {RUNS}, would work")
    return folders
