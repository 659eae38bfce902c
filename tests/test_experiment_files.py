"""Experiment files: what is read, and what is said about a file that is wrong."""

import subprocess
import sys
import time

import pytest

from suite.experiment.catalogue import load_experiment
from suite.experiment.errors import BadInput, Place
from suite.experiment.source import parse_value, read_yaml
from suite.experiment.spec import Experiment, read_experiment
from suite.pipeline.names import SCHEDULE_NAMES

SCHEDULES = ", ".join(SCHEDULE_NAMES)

BASE = """\
model: {layers: 4, hidden_size: 64, heads: 4, vocab_size: 256, seq_length: 32}
training: {global_batch: 8}
"""


def _load(tmp_path, text: str) -> Experiment:
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return load_experiment(path)


def _problems(tmp_path, text: str) -> list[str]:
    """What is said about a bad file, without the folder it is in."""
    with pytest.raises(BadInput) as caught:
        _load(tmp_path, text)
    lines = [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return lines


def test_a_whole_file(tmp_path):
    experiment = _load(
        tmp_path,
        """
name: figure-12
title: Schedules
paper: {figure: 12, table: null}
variables: {per_rank: 2}
model: {dropout: 0}
scales:
  paper: {model: gpt-175b, parallel: {tensor: 8}}
  laptop:
    model: gpt-nano
    variables: {per_rank: 3}
    require: ["global_batch < 100"]
sweep: {grid: {schedule: [1f1b, {name: interleaved, chunks: 4}]}}
derive: {global_batch: per_rank * ranks}
require: [{that: heads % tensor == 0, because: heads are split}]
""",
    )
    assert (experiment.name, experiment.title) == ("figure-12", "Schedules")
    assert experiment.paper == {"figure": 12, "table": None}
    assert list(experiment.scales) == ["paper", "laptop"]
    laptop = experiment.scale("laptop")
    assert laptop.settings["per_rank"].value == 3
    assert laptop.settings["model.layers"].value == 4  # of gpt-nano
    assert laptop.settings["model.dropout"].value == 0  # the top level's, beside the scale's shape
    assert [rule.because for rule in laptop.require] == ["heads are split", ""]
    assert experiment.scale("paper").settings["model.layers"].value == 96


def test_a_file_without_scales_has_the_scale_laptop_and_its_stem_as_name(tmp_path):
    experiment = _load(tmp_path, BASE)
    assert experiment.name == "experiment"
    assert list(experiment.scales) == ["laptop"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # unknown keys, at every level
        (BASE + "paralel: {}\n", "experiment.yaml:3:1: paralel: unknown key; nearest: parallel"),
        (
            BASE + "parallel: {tensr: 2}\n",
            "experiment.yaml:3:12: parallel.tensr: unknown field; nearest: tensor",
        ),
        (
            BASE + "tensor: 2\n",
            "experiment.yaml:3:1: tensor: is a field of parallel; write parallel: {tensor: ...}",
        ),
        (
            BASE + "scales: {laptop: {swep: {}}}\n",
            "experiment.yaml:3:19: scales.laptop.swep: unknown key; nearest: sweep",
        ),
        (BASE + "sweep: {gird: {}}\n", "experiment.yaml:3:9: sweep.gird: unknown key; nearest: grid"),
        (
            BASE + "sweep: {tensor: [1, 2]}\n",
            "experiment.yaml:3:9: sweep.tensor: is an axis and belongs under grid or zip: "
            "sweep: {grid: {tensor: [...]}}",
        ),
        (
            BASE + "sweep: {grid: {tensorr: [1, 2]}}\n",
            "experiment.yaml:3:16: tensorr: names no field, section or variable; nearest: tensor",
        ),
        (
            BASE + "sweep: {grid: {name: [a, b]}}\n",
            "experiment.yaml:3:16: name: the short name is not unique; write one of model.name, schedule.name",
        ),
        (
            BASE + "derive: {tensr: 2}\n",
            "experiment.yaml:3:10: derive.tensr: names no field or variable; nearest: tensor",
        ),
        (
            BASE + "require: [{that: tensor == 1, becuase: x}]\n",
            "experiment.yaml:3:31: require.becuase: unknown key; nearest: because",
        ),
        # wrong types
        (
            BASE + 'parallel: {tensor: "4"}\n',
            "experiment.yaml:3:20: parallel.tensor: got '4'; it must be a whole number of at least 1; nearest: 4",
        ),
        (
            BASE + "parallel: {tensor: 2.5}\n",
            "experiment.yaml:3:20: parallel.tensor: got 2.5; it must be a whole number of at least 1; nearest: 2",
        ),
        (
            BASE + "parallel: {tensor: true}\n",
            "experiment.yaml:3:20: parallel.tensor: got true; it must be a whole number of at least 1; 1 would work",
        ),
        (
            BASE + "parallel: {sequence: yes}\n",
            "experiment.yaml:3:22: parallel.sequence: got 'yes'; it must be true or false; nearest: true",
        ),
        (
            BASE + "parallel: {sequence: 1}\n",
            "experiment.yaml:3:22: parallel.sequence: got 1; it must be true or false",
        ),
        (
            BASE + "parallel: 4\n",
            "experiment.yaml:3:11: parallel: got 4; it must be a mapping of fields; parallel={tensor: 1} would work",
        ),
        (BASE + "cluster: 4\n", "experiment.yaml:3:10: cluster: got 4; it must be text; local would work"),
        (BASE + "title: [4]\n", "experiment.yaml:3:8: title: got [4]; it must be text"),
        (
            BASE + "schedule: {split: [1, two]}\n",
            "experiment.yaml:3:19: schedule.split: got [1, 'two']; it must be a list in which every entry is "
            "a multiple of 0.5 of at least 0.5",
        ),
        (
            BASE + "schedule: {split: [1, 1.4]}\n",
            "experiment.yaml:3:19: schedule.split: got [1, 1.4]; it must be a list in which every entry is "
            "a multiple of 0.5 of at least 0.5; nearest: [1, 1.5]",
        ),
        (
            BASE + "sweep: {grid: {tensor: 2}}\n",
            "experiment.yaml:3:24: sweep.grid.tensor: got 2; an axis is a list of values; write [2]",
        ),
        # unknown schedule and unknown model, wherever they stand
        (
            BASE + "schedule: interleave\n",
            f"experiment.yaml:3:11: schedule.name: got 'interleave'; it must be one of {SCHEDULES}; "
            "nearest: interleaved",
        ),
        (
            BASE + "sweep: {grid: {schedule: [1f1b, 1f1bb], tensor: [1, 2]}}\n",
            f"experiment.yaml:3:33: schedule.name: got '1f1bb'; it must be one of {SCHEDULES}; nearest: 1f1b",
        ),
        (
            "model: gpt-175\ntraining: {global_batch: 8}\n",
            "experiment.yaml:1:8: model: got 'gpt-175'; it must be a known model, or a label beside layers, "
            "hidden_size and heads; nearest: gpt-175b",
        ),
        (
            BASE + "sweep: {cases: [{model: {name: gpt-tini, dropout: 0}}]}\n",
            "experiment.yaml:3:32: model.name: got 'gpt-tini'; it must be a known model, or a label beside "
            "layers, hidden_size and heads; nearest: gpt-tiny",
        ),
        # negative size
        (
            BASE + "sweep:\n  zip:\n    global_batch: [8, -16]\n",
            "experiment.yaml:5:23: training.global_batch: got -16; it must be a whole number of at least 1; nearest: 1",
        ),
        # duplicate keys
        (
            BASE + "training: {global_batch: 16}\n",
            "experiment.yaml:3:1: training: the key is given twice; it was already given on line 2; keep one of them",
        ),
        (
            BASE + "parallel: {tensor: 1, tensor: 2}\n",
            "experiment.yaml:3:23: tensor: the key is given twice; it was already given on line 3; keep one of them",
        ),
        # YAML
        (
            BASE + "parallel: {tensor: 1\n",
            "experiment.yaml:4:1: not valid YAML: while parsing a flow mapping, expected ',' or '}', but got "
            "'<stream end>'",
        ),
        (
            BASE + "data: !!python/object:os.system {}\n",
            "experiment.yaml:3:7: the tag tag:yaml.org,2002:python/object:os.system is not supported; "
            "write the "
            "plain value",
        ),
        (
            BASE + "title: !secret x\n",
            "experiment.yaml:3:8: the tag !secret is not supported; write the plain value",
        ),
        (BASE + "? [1]\n: 2\n", "experiment.yaml:3:3: a key must be text, not a list or a mapping"),
        ("", "experiment.yaml:1:1: is empty; an experiment is a mapping with model, training, sweep, ..."),
        ("[1]", "experiment.yaml:1:1: got [1]; an experiment is a mapping with model, training, sweep, ..."),
        # expressions
        (
            BASE + "derive: {microbatch: open('x')}\n",
            "experiment.yaml:3:22: derive.microbatch: 'open('x')' calls open, which is not allowed; allowed "
            "functions are min, max, ceil, floor, abs",
        ),
        (
            BASE + "require: [layers % pipeline]\n",
            "experiment.yaml:3:11: require, rule 1: 'layers % pipeline' is a number, not a condition; "
            "compare it, "
            "as in layers % pipeline == 0",
        ),
        (
            BASE + "require: [layer > 2]\n",
            "experiment.yaml:3:11: require, rule 1: 'layer > 2' uses the unknown name 'layer'; nearest: layers",
        ),
        (
            BASE + "derive: {microbatch: 1 / 0}\n",
            "experiment.yaml:3:22: derive.microbatch: '1 / 0' has no value: division by zero",
        ),
        (
            BASE + "derive: {microbatch: data, data: 2 * microbatch}\n",
            "experiment.yaml:3:22: derive.training.microbatch: is derived from itself: "
            "training.microbatch -> "
            "parallel.data -> training.microbatch",
        ),
        (
            BASE + "derive: {pipeline: ranks // 2}\n",
            "experiment.yaml:3:20: derive.parallel.pipeline: is derived from itself: parallel.pipeline -> "
            "parallel.pipeline",
        ),
        (
            BASE + "derive: {schedule: 2}\n",
            "experiment.yaml:3:10: derive.schedule: a whole section or its name cannot be derived; sweep "
            "it, or "
            "derive one of its fields",
        ),
        # two sources for one field
        (
            BASE + "derive: {global_batch: 16}\n",
            "experiment.yaml:3:24: derive.training.global_batch: is both derived and given a value; keep "
            "one of "
            "the two",
        ),
        (
            BASE + "derive: {tensor: 2}\nsweep: {grid: {tensor: [1, 2]}}\n",
            "experiment.yaml:3:18: derive.parallel.tensor: is both derived and swept; keep one of the two",
        ),
        (
            BASE + "sweep: {grid: {tensor: [1, 2]}, zip: {parallel.tensor: [1, 2]}}\n",
            "experiment.yaml:3:8: parallel.tensor: is set twice in one sweep; keep one of the two",
        ),
        (
            BASE + "sweep: {zip: {tensor: [1, 2], data: [1]}}\n",
            "experiment.yaml:3:9: sweep.zip: axes that are walked together need equally many values; "
            "tensor has 2, "
            "data has 1",
        ),
        # variables
        (
            BASE + "variables: {tensor: 2}\n",
            "experiment.yaml:3:13: variables.tensor: the name already means something else; take another",
        ),
        (
            BASE + "variables: {k: [1]}\n",
            "experiment.yaml:3:16: variables.k: got [1]; a variable is a number, a text, true or false",
        ),
        # names that become folders
        (
            BASE + "name: ../up\n",
            "experiment.yaml:3:7: name: got '../up'; it names a folder, so it must be unaccented "
            "letters, digits, '.', '_' and '-', a letter or digit first; up would work",
        ),
        (
            BASE + "scales: {größe 2: {}}\n",
            "experiment.yaml:3:10: scales.größe 2: it names a folder, so it must be unaccented letters, digits, '.', "
            "'_' and '-', a letter or digit first; groe-2 would work",
        ),
    ],
)
def test_one_sentence_names_the_place_the_key_the_value_and_what_works(tmp_path, text, expected):
    (line,) = _problems(tmp_path, text)
    assert line == expected


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file(tmp_path):
    lines = _problems(
        tmp_path,
        """\
titel: x
model: {layers: 4, hidden_size: -64, heads: 4}
training: {global_batch: "8"}
scales:
  laptop: {schedule: gpip}
  paper: {parallel: {tensor: 0}}
sweep: {grid: {seed: [1, 2.5], colour: [red]}}
require: [layer > 2]
""",
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["experiment.yaml:1:1", "titel"],
        ["experiment.yaml:2:33", "model.hidden_size"],
        ["experiment.yaml:3:26", "training.global_batch"],
        ["experiment.yaml:5:22", "schedule.name"],
        ["experiment.yaml:6:30", "parallel.tensor"],
        ["experiment.yaml:7:26", "training.seed"],
        ["experiment.yaml:7:32", "colour"],
        ["experiment.yaml:8:11", "require, rule 1"],
    ]


def test_no_jargon(tmp_path):
    text = BASE + 'parallel: {tensor: "x", order: [tensor], sharding: zero2}\nkernels: {attention: fast}\n'
    for line in _problems(tmp_path, text):
        assert not any(word in line for word in ("pydantic", "Input should", "validation error", "NoneType", "tuple"))


def test_a_scale_that_is_not_there_lists_those_that_are(tmp_path):
    experiment = _load(tmp_path, BASE + "scales: {laptop: {}, paper: {}}\n")
    with pytest.raises(BadInput, match="there is no scale 'pape'; this experiment has: laptop, paper"):
        experiment.scale("pape")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-1.5e+2", -150.0),
        (".5", 0.5),
        ("51_200", 51200),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("1f1b", "1f1b"),
        ("2024-01-01", "2024-01-01"),
        ('"4"', "4"),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
    ],
)
def test_scalars(text, expected):
    value = parse_value(text, Place("here")).value
    assert value == expected
    assert type(value) is type(expected)


def test_aliases_are_followed_but_not_without_end(tmp_path):
    path = tmp_path / "bomb.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\n")
    assert read_yaml(path).plain() == {"a": {"x": 1}, "b": {"x": 1}}
    path.write_text(
        "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    )
    with pytest.raises(BadInput, match="without end"):
        read_yaml(path)
    path.write_text("a: &a [*a]\n")
    with pytest.raises(BadInput, match="without end"):
        read_yaml(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00x", b"a: \x00"])
def test_bytes_that_are_no_text(tmp_path, content):
    path = tmp_path / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"not UTF-8|not valid YAML"):
        read_yaml(path)


def test_reading_and_expanding_needs_no_torch_and_starts_fast():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import suite.experiment.catalogue, suite.experiment.expansion\n"
        "print(sorted(m for m in ('numpy', 'pandas', 'matplotlib') if m in sys.modules))"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.perf_counter() - start < 5


def test_a_file_whose_name_cannot_name_a_folder_is_told_to_give_one(tmp_path):
    path = tmp_path / "ünï.yaml"
    path.write_text(BASE)
    with pytest.raises(BadInput) as caught:
        read_experiment(path)
    (problem,) = caught.value.problems
    assert problem.message.startswith("is left out, and the file is called 'ünï'; it names a folder")
    assert problem.message.endswith("; uni would work")
    path.write_text(BASE + "name: uni\n")
    assert read_experiment(path).name == "uni"
