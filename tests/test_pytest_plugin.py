"""The fixture `suite_point` in somebody else's tests; points are simulated, in this process."""

import json
import tomllib
from pathlib import Path

import pytest
from command import call

# What is imported first inside an inner pytest is dropped with it and imported again by the next, which takes seconds.
import suite.console
import suite.launch.simulated
import suite.launch.sweep
import suite.regression.sides
import suite.regression.written
import suite.simulate.prediction  # noqa: F401
from suite.regression import process

pytest_plugins = ["pytester"]

EXPERIMENT = """\
name: mine
model: gpt-tiny
training: {global_batch: 8}
sweep: {grid: {pipeline: [1, 2]}}
"""
PLUGIN = "suite.regression.pytest_plugin"


@pytest.fixture
def theirs(pytester, monkeypatch):
    """A project with an experiment; a function that runs one test of it."""
    monkeypatch.setattr(process, "run_suite", lambda arguments: call(*arguments).err.strip().splitlines()[-1:])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    Path("mine.yaml").write_text(EXPERIMENT)

    def run(body, *options):
        pytester.makepyfile(f"def test_throughput(suite_point):\n    {body}\n")
        return pytester.runpytest_inprocess("-p", PLUGIN, *options)

    return run


POINT = 'suite_point("mine.yaml", on="simulate")'


def test_it_is_registered_under_the_name_of_its_module():
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}, "so that -p and the entry point are one plugin"


def test_a_test_in_one_line_and_conditions_of_ones_own(theirs):
    theirs(POINT).assert_outcomes(passed=1)
    theirs(f"assert [point.seconds for point in {POINT}] == [0.32, 0.32]").assert_outcomes(failed=1)
    both = f"one, two = {POINT}; assert 0 < one.tokens_per_second < two.tokens_per_second"
    theirs(both).assert_outcomes(passed=1)
    assert len(list(Path("results/pytest").rglob("*.json"))) == 6


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('suite_point("nowhere.yaml")', "*nothing was measured: *nowhere.yaml: there is no such file*"),
        ('suite_point("mine.yaml", "pipeline=[1,99]", on="simulate")', "*invalid: *"),
        ('suite_point("mine.yaml", "hidden_size=0", on="simulate")', "*nothing was measured: *hidden_size*"),
    ],
)
def test_what_does_not_run_fails_the_test(theirs, body, sentence):
    done = theirs(body)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([sentence])


def test_a_baseline_is_kept_and_compared_with(theirs):
    missing = theirs(POINT, "--suite-baseline", "main")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*not comparable: 'main' is no folder and no baseline*"])
    theirs(POINT, "--suite-save", "main").assert_outcomes(passed=1)
    theirs(POINT, "--suite-baseline", "main").assert_outcomes(passed=1)
    for file in Path("results/baselines/main").rglob("*.json"):
        record = json.loads(file.read_text())
        record["iterations"]["seconds"] = [0.97 * seconds for seconds in record["iterations"]["seconds"]]
        file.write_text(json.dumps(record))
    slower = theirs(POINT, "--suite-baseline", "main")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["*+3.09%*2% (default)*REGRESSION*"])
    tolerant = 'suite_point("mine.yaml", on="simulate", tolerance="5%")'
    theirs(tolerant, "--suite-baseline", "main").assert_outcomes(passed=1)
    theirs('suite_point("mine.yaml", on="simulate", tolerance="5")', "--suite-baseline", "main").assert_outcomes(
        failed=1
    )


def test_an_inconclusive_point_is_a_warning_and_strictly_a_failure(theirs, monkeypatch):
    """Emulated records have noise; of one launch nothing follows."""
    simulate = process.run_suite

    def emulated(arguments):
        said = simulate(arguments)
        for file in Path(arguments[-1]).rglob("simulated/*/*.json"):
            record = json.loads(file.read_text()) | {"source": "emulated", "started": str(file)}
            place = Path(str(file).replace("/simulated/", "/emulated/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(record))
            file.unlink()
        return said

    monkeypatch.setattr(process, "run_suite", emulated)
    body = 'suite_point("mine.yaml", on="simulate", launches=1)'
    theirs(body, "--suite-save", "main").assert_outcomes(passed=1)
    warned = theirs(body, "--suite-baseline", "main")
    warned.assert_outcomes(passed=1)
    warned.stdout.fnmatch_lines(["*InconclusiveWarning: baseline: baseline main"])
    strict = theirs(body, "--suite-baseline", "main", "--suite-strict")
    strict.assert_outcomes(failed=1)
    strict.stdout.fnmatch_lines(["*INCONCLUSIVE*"])
