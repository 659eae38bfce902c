"""The house's rules: imports point down, the front needs no torch, names say what is inside."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from suite.experiment.catalogue import load_experiment
from suite.experiment.expansion import expand
from suite.records.schema import Record
from suite.records.store import Store

ROOT = Path(__file__).resolve().parents[1]

# From the ground up. Rooms on one floor do not know of each other. A room is a package with all that lies in it,
# but for the modules that are rooms of their own.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("suite", "suite.resources"),
    ("suite.kernels", "suite.records", "suite.pipeline"),
    ("suite.experiment",),
    ("suite.parallel", "suite.measure"),
    ("suite.model", "suite.pipeline.transport", "suite.pipeline.mailboxes"),
    ("suite.pipeline.engine",),
    ("suite.pipeline.ready_engine",),
    ("suite.training", "suite.simulate"),
    ("suite.launch",),
    ("suite.regression",),
    ("suite.report", "suite.calibrate"),
    ("suite.console", "suite.schedules", "suite.ending"),
    ("suite.chosen", "suite.reports", "suite.regressing", "suite.history", "suite.fitting"),
    ("suite.submissions", "suite.regressions"),
    ("suite.sweeps",),
    ("suite.cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def _module(file: Path) -> str:
    """The name under which a file of `suite/` or `kernels/` is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = ("suite", *parts) if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(file): file for top in ("suite", "kernels") for file in sorted((ROOT / top).rglob("*.py"))}


def _room(module: str) -> str:
    """The entry in FLOORS that a module belongs to; `suite` itself is only its `__init__`."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    found = next((name for name in names if name in FLOOR), None)
    assert found not in (None, "suite") or module == "suite", f"{module} has no floor; give its package one"
    return found


def _imports(module: str) -> list[tuple[int, str]]:
    """Line and name of every module of the suite that a module imports, at its top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in FILES else base) for name in names]
    return [(line, name) for line, name in found if name.split(".")[0] in ("suite", "kernels")]


def test_every_module_is_seen():
    assert {"suite", "suite.cli", "suite.kernels.attention", "suite.pipeline.generators"} <= FILES.keys()
    assert "suite.launch.rank" in {name for _, name in _imports("suite.launch.node")}, "inside a function"


def test_imports_only_point_down():
    wrong = []
    for module, file in FILES.items():
        here = _room(module)
        for line, name in _imports(module):
            if name not in FILES:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {name} is not a module under its own name")
                continue
            there = _room(name)
            if there != here and FLOOR[there] >= FLOOR[here] and name != "suite":
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {here} imports {name}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_and_the_ground_floor_import_nothing_of_the_suite():
    for module in ("suite", "suite.resources"):
        assert _imports(module) == []
    for module in FILES:
        if module.startswith("suite.kernels."):
            assert all(_room(name) == "suite.kernels" for _, name in _imports(module)), module


# What computes, and so may need torch; everything else must not.
COMPUTES = re.compile(
    r"suite\.kernels\.(?!registry$)\w+|suite\.(parallel|model|training)\.(?!(sizes|split|activations)$)\w+|suite\.measure\.(clock|gemm|memory)"
    r"|suite\.pipeline\.(engine|ready_engine|transport|mailboxes)|suite\.launch\.(rank|preflight|emulated|samples|trace)"
    r"|suite\.calibrate\.(operations|collectives)"
)


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """The environment of a process in which torch cannot be imported."""
    folder = tmp_path_factory.mktemp("no-torch")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_everything_but_what_computes_is_importable_without_torch(no_torch, tmp_path):
    names = [module for module in FILES if not COMPUTES.fullmatch(module)]
    assert {"suite.cli", "suite.launch.node", "suite.model.sizes", "suite.measure.flops"} <= set(names)
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    environment = {**os.environ, **no_torch}

    def python(text):
        command = [sys.executable, "-c", text]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = python(code)
    assert done.returncode == 0, done.stderr
    refused = python("import suite.training.step")
    assert "ImportError: torch was imported" in refused.stderr, "the check itself must be able to fail"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder whose store has one record of the quickstart."""
    folder = tmp_path_factory.mktemp("measured")
    planned = expand(load_experiment(ROOT / "experiments" / "quickstart.yaml"), "laptop", ["pipeline=1"]).valid[0]
    count = planned.point.measure.warmup + planned.point.measure.iterations
    seconds = [0.5] * count
    record = Record(
        experiment="quickstart",
        scale="laptop",
        point_id=planned.point_id,
        source="measured",
        point=planned.configuration,
        status="ok",
        iterations={"seconds": seconds, "loss": [3.0] * count, "grad_norm": [1.0] * count, "warmup": 2},
        ranks=[
            {
                "rank": 0,
                "coords": {"pipeline": 0, "data": 0, "tensor": 0},
                "busy_seconds": [0.4] * count,
                "busy_by_action": {"F": [0.4] * count},
            }
        ],
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
    )
    Store(folder / "results" / "runs").write(record, "abc")
    return folder


COMMANDS = [
    ("list",),
    ("doctor",),
    ("plan", "quickstart"),
    ("schedule", "interleaved", "--stages", "4", "--microbatches", "8"),
    ("status", "quickstart"),
    ("baseline", "main", "quickstart"),
    ("history", "quickstart"),
    ("report", "quickstart"),
    ("run", "quickstart", "--dry-run"),
    ("run", "quickstart", "--on", "simulate"),
]
ONE_AFTER_ANOTHER = f"""\
import json
from dataclasses import astuple
from command import call
print(json.dumps([astuple(call(*arguments)) for arguments in {COMMANDS!r}]))
"""


@pytest.fixture(scope="module")
def without_torch(no_torch, measured):
    """What each command answers, all in one process in which torch cannot be imported."""
    paths = {"PYTHONPATH": os.pathsep.join([no_torch["PYTHONPATH"], str(ROOT / "tests")])}
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER]
    done = subprocess.run(command, cwd=measured, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMANDS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_front_works_where_torch_is_not_importable(arguments, without_torch):
    code, out, err = without_torch[arguments]
    assert code == 0, err
    assert out


def _tree() -> list[Path]:
    """The files of the checkout that are, or would be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [file for name in done.stdout.split("\0") if name and (file := ROOT / name).is_file()]


def test_no_file_is_a_drawer_for_odds_and_ends():
    drawers = re.compile(r"(utils?|helpers?|misc|common|shared|stuff|tools)(_|\.|$)")
    assert [str(file) for file in _tree() if drawers.match(file.name) or drawers.match(file.parent.name)] == []


def test_no_path_of_a_particular_machine_is_in_the_tree():
    """Neither this machine's folders nor those under which shared machines and homes usually lie."""
    usual = re.compile(r"(?<![\w.~}])/(home|root|Users|mnt|scratch|lustre|gpfs|nfs|srv|data\d*|workspace)/\w")
    own = [f"{folder}/" for folder in (ROOT, Path.home()) if len(folder.parts) > 1]
    found = []
    for file in _tree():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if (usual.search(line) or any(path in line for path in own)) and file != Path(__file__).resolve():
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_the_wheel_ships_every_package_and_only_what_is_there():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed, elsewhere = tool["packages"], tool["package-dir"]
    for package in listed:
        folder = ROOT / elsewhere.get(package, package.replace(".", "/"))
        assert folder.is_dir(), f"{package}: there is no {folder}"
        if not package.startswith("suite.shipped."):
            assert (folder / "__init__.py").is_file(), f"{package}: {folder} has no __init__.py"
    code = {module if FILES[module].name == "__init__.py" else module.rpartition(".")[0] for module in FILES}
    assert {name for name in listed if not name.startswith("suite.shipped.")} == code - {"suite.kernels"}
    assert len(listed) == len(set(listed))
    data = {name for name in listed if name.startswith("suite.shipped.")}
    assert data == set(tool["package-data"]) == {name for name in elsewhere if name.startswith("suite.shipped.")}
