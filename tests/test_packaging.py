"""The wheel: what is in it, that it works alone, and that the folder `kernels/` is in nobody's way."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from command import run

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {
    "experiments": "experiments",
    "published": "results/published",
    "templates": "reports/templates",
    "clusters": "slurm/clusters",
    "devices": "slurm/devices",
    "software": "slurm/software",
}
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "tests")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy as a clone would be: without empty folders and without what an earlier build left."""
    copy, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    for folder in sorted((folder for folder in copy.rglob("*") if folder.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _text(contents, suffix: str) -> str:
    (name,) = [name for name in contents if name.endswith(f".dist-info/{suffix}")]
    return contents[name].decode()


@pytest.fixture(scope="module")
def metadata(contents) -> Message:
    return message_from_string(_text(contents, "METADATA"))


def test_the_wheel_holds_the_package_and_nothing_beside_it(contents):
    tops = {name.split("/")[0] for name in contents if ".dist-info/" not in name}
    assert tops == {"suite"}, "no top-level kernels, no tests"
    named = [name for name in contents if "test" in Path(name).name]
    assert named == ["suite/regression/pytest_plugin.py"], "no tests"
    for top, place in (("suite", "suite"), ("kernels", "suite/shipped/kernels")):
        code = {f"{place}/{file.relative_to(ROOT / top)}" for file in (ROOT / top).rglob("*.py")}
        assert code <= contents.keys()
        assert {name for name in contents if name.startswith(f"{place}/") and name.endswith(".py")} >= code
    assert "suite/shipped/kernels/registry.py" in contents


def test_the_wheel_ships_every_data_file(contents):
    wanted = {}
    for kind, folder in SHIPPED.items():
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and file.suffix in (".yaml", ".csv", ".md", ".jinja"):
                wanted[f"suite/shipped/{kind}/{file.relative_to(ROOT / folder)}"] = file.read_bytes()
    assert {
        "suite/shipped/experiments/quickstart.yaml",
        "suite/shipped/clusters/local.yaml",
        "suite/shipped/templates/report.html.jinja",
    } <= wanted.keys()
    shipped = {name: content for name, content in contents.items() if name.startswith("suite/shipped/")}
    assert {
        name: content for name, content in shipped.items() if not name.startswith("suite/shipped/kernels/")
    } == wanted


def test_metadata(contents, metadata):
    assert (metadata["Name"], metadata["License-Expression"]) == ("ptdp-suite", "Apache-2.0")
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Apache License" in _text(contents, "licenses/LICENSE")
    names = {requirement.replace("[", " ").replace(">", " ").replace("<", " ").split()[0] for requirement in
             metadata.get_all("Requires-Dist")}  # fmt: skip
    assert {"torch", "submitit", "pydantic", "typer"} <= names
    assert not {"apex", "kernels", "megatron-core"} & names, "on PyPI these are other people's, or not needed"
    scripts = configparser.ConfigParser()
    scripts.read_string(_text(contents, "entry_points.txt"))
    assert dict(scripts["console_scripts"]) == {"suite": "suite.cli:main"}
    assert list(scripts["pytest11"]) == ["suite.regression.pytest_plugin"]


# No process that starts with this before the rest of its path finds the checkout.
ALONE = """\
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""
PROBE = """\
import json, sys
import suite, suite.kernels
from suite.resources import resource_dir
kinds = ("experiments", "templates", "clusters")
places = [suite.__file__, suite.kernels.__file__, *(str(resource_dir(kind)) for kind in kinds)]
print(json.dumps({"path": sys.path, "places": places}))
"""


@pytest.fixture(scope="module")
def installed(contents, tmp_path_factory):
    """A folder with the wheel unpacked, and the environment in which only that is the suite."""
    target = tmp_path_factory.mktemp("installed")
    for name, content in contents.items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (target / "sitecustomize.py").write_text(ALONE)
    return target, {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.processes
def test_the_installed_suite_works_alone_and_writes_where_it_is_called(installed, tmp_path):
    target, environment = installed
    before = sorted(target.rglob("*"))
    probe = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(probe.stdout)
    assert str(ROOT) not in found["path"]
    assert [place for place in found["places"] if not Path(place).is_relative_to(target)] == []

    listed = run("list", cwd=tmp_path, **environment)
    assert (listed.code, listed.err) == (0, "")
    assert re.search(r"^ +quickstart +laptop: ", listed.out, re.MULTILINE)
    plan = run("plan", "quickstart", "--json", cwd=tmp_path, **environment)
    assert plan.code == 0
    assert all(point["valid"] for point in plan.json["points"])
    assert list(tmp_path.iterdir()) == []

    small = ("layers=2", "hidden_size=32", "tensor=1", "pipeline=1", "data=1", "schedule=1f1b", "iterations=2")
    sweep = run("run", "quickstart", *small, "--json", cwd=tmp_path, **environment)
    assert sweep.code == 0, sweep
    (launch,) = sweep.json["launches"]
    assert launch["status"] == "ok"
    place = tmp_path / "results" / "runs" / "quickstart" / "laptop" / "measured" / launch["point_id"]
    assert (place / "v0.1.0-0.json").is_file(), "outside a checkout the revision is the version"
    report = run("report", "quickstart", cwd=tmp_path, **environment)
    assert report.code == 0, report
    for name in ("index.html", "report.md", "data.csv"):
        assert (tmp_path / "reports" / "quickstart" / name).stat().st_size > 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["reports", "results"]
    assert sorted(target.rglob("*")) == before


# `transformers` asks for a package `kernels` (PyPI has one), and finds our folder where the top of the checkout is the
# working folder: it must turn away from a folder without a version, and take the real package where that is installed.
BESIDE_TRANSFORMERS = """\
import json, sys
import suite.kernels.registry
import transformers
from transformers.utils.import_utils import is_kernels_available
found = is_kernels_available()
print(json.dumps({"package": found, "operators": list(suite.kernels.registry.OPERATORS)}))
"""
# Seconds to import, and only where the folder is found.
A_MODEL_OF_THEIRS = """\
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8, n_positions=8))
"""


@pytest.mark.processes
@pytest.mark.parametrize("at_the_top", [False, True], ids=["elsewhere", "at the top of the checkout"])
def test_transformers_does_not_take_our_folder_for_the_package_kernels(tmp_path, at_the_top):
    done = subprocess.run(
        [sys.executable, "-c", (A_MODEL_OF_THEIRS if at_the_top else "") + BESIDE_TRANSFORMERS],
        cwd=ROOT if at_the_top else tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["package"] is _installed("kernels")
    assert "attention" in answer["operators"]


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def test_a_package_kernels_that_is_installed_wins_over_our_folder(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("WHOSE = 'the package'")
    command = "import kernels, suite.kernels.registry; print(kernels.WHOSE, *suite.kernels.registry.OPERATORS)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("the package layer_norm"), done.stderr
