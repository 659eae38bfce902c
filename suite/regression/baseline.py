"""Baselines: records kept under a name, apart for every kind of machine.

    results/baselines/<name>/<fingerprint>/<experiment>/<scale>/<source>/<point>/<revision>-<launch>.json

The fingerprint is the one of `suite.regression.fingerprint`, so that one name serves all machines of a team.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from suite.experiment.errors import BadInput, Problem
from suite.regression.fingerprint import fingerprint_id
from suite.regression.launches import PointLaunches

BASELINES = Path("results/baselines")

_NAME = re.compile(r"\w[\w.+-]*")


def baseline_names() -> list[str]:
    """The baselines in the working folder."""
    return sorted(path.name for path in BASELINES.iterdir() if path.is_dir()) if BASELINES.is_dir() else []


def baseline_folders(name: str) -> list[Path]:
    """The stores of a baseline, one for every kind of machine."""
    return sorted(path for path in (BASELINES / name).iterdir() if path.is_dir())


def check_name(name: str) -> None:
    """Raises BadInput where the name cannot be a folder's, or would be taken for something else."""
    if not _NAME.fullmatch(name):
        message = f"'{name}' cannot name a baseline: letters, digits and ._+- can, such as main"
        raise BadInput([Problem(message)])


def save_baseline(name: str, points: Iterable[PointLaunches]) -> list[Path]:
    """Copy the points' launches into the baseline, in place of what it has of them for the same kind of machine.

    Returns the copies. A point without a usable launch is passed over.
    """
    check_name(name)
    copies = []
    for one in points:
        if one.fingerprint is None:
            continue
        key = one.key
        store = BASELINES / name / fingerprint_id(one.fingerprint)
        folder = store / key.experiment / key.scale / key.source / key.point_id
        contents = [(launch.record, Path(launch.record.file).read_bytes()) for launch in one.launches]
        shutil.rmtree(folder, ignore_errors=True)  # after reading: it may be what is copied
        folder.mkdir(parents=True)
        for number, (record, content) in enumerate(contents):
            copies.append(folder / f"{record.revision}-{number}.json")
            copies[-1].write_bytes(content)
    return copies
