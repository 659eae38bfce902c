"""Overrides on the command line."""

import pytest

from suite.experiment.catalogue import load_experiment
from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand
from suite.pipeline.names import SCHEDULE_NAMES

TEXT = """\
model: {layers: 8, hidden_size: 64, heads: 8, vocab_size: 256, seq_length: 32, dropout: 0}
variables: {k: 1}
training: {global_batch: 16}
sweep:
  grid: {schedule: [gpipe, {name: interleaved, chunks: 4}], tensor: [1, 2]}
  zip: {pipeline: [1, 2], data: [2, 1]}
  cases: [{seed: 1, microbatch: 1}, {seed: 2, microbatch: 2}]
derive: {learning_rate: k * 1e-3}
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(TEXT)
    return load_experiment(path)


def _values(expansion, read):
    return sorted({read(planned.point) for planned in expansion.points})


def test_the_file_alone(experiment):
    assert len(expand(experiment, "laptop").points) == 16


@pytest.mark.parametrize("key", ["tensor", "parallel.tensor"])
def test_a_scalar_fixes_a_field_and_removes_its_grid_axis(experiment, key):
    expansion = expand(experiment, "laptop", [f"{key}=4"])
    assert (len(expansion.points), expansion.dropped) == (8, 0)
    assert _values(expansion, lambda p: p.parallel.tensor) == [4]


def test_a_scalar_removes_the_field_from_zip_and_cases_and_derive(experiment):
    expansion = expand(experiment, "laptop", ["pipeline=4", "seed=9", "learning_rate=0.5"])
    assert len(expansion.points) == 16  # data and microbatch still vary
    assert _values(expansion, lambda p: p.parallel.pipeline) == [4]
    assert _values(expansion, lambda p: p.training.seed) == [9]
    assert _values(expansion, lambda p: p.training.learning_rate) == [0.5]
    both = expand(experiment, "laptop", ["pipeline=4", "data=1"])
    assert (len(both.points), both.dropped) == (8, 0)


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("schedule=[gpipe,1f1b]", ["gpipe", "1f1b"]),
        ("schedule=gpipe,1f1b", ["gpipe", "1f1b"]),
        ("schedule = [ 1f1b , gpipe ]", ["1f1b", "gpipe"]),
        ("schedule=1f1b,{name: interleaved, chunks: 2}", ["1f1b", "interleaved v=2"]),
        (
            "schedule={name: interleaved, chunks: 2},{name: interleaved, chunks: 3}",
            ["interleaved v=2", "interleaved v=3"],
        ),
        ("schedule.name=[1f1b,interleaved]", ["1f1b", "interleaved v=2"]),
        ("schedule=interleaved", ["interleaved v=2"]),
        ("schedule={name: interleaved, chunks: 8}", ["interleaved v=8"]),
    ],
)
def test_a_list_is_a_new_axis_in_place_of_the_old(experiment, override, names):
    expansion = expand(experiment, "laptop", [override, "tensor=1", "pipeline=1", "data=1", "seed=1", "microbatch=1"])
    assert [planned.point.schedule_label for planned in expansion.points] == names


def test_an_axis_keeps_its_position_in_the_order_of_points(experiment):
    labels = [planned.label for planned in expand(experiment, "laptop", ["schedule=1f1b,gpipe"]).points]
    assert labels[0].startswith("schedule=1f1b tensor=1 ")
    assert labels[-1].startswith("schedule=gpipe tensor=2 ")


def test_a_new_axis_multiplies(experiment):
    expansion = expand(experiment, "laptop", ["global_batch=8,16,32"])
    assert len(expansion.points) == 48
    assert _values(expansion, lambda p: p.training.global_batch) == [8, 16, 32]


def test_fixing_a_schedule_by_name_lets_no_chunks_leak(experiment):
    expansion = expand(experiment, "laptop", ["schedule=1f1b"])
    assert (len(expansion.points), expansion.dropped) == (8, 0)
    assert _values(expansion, lambda p: p.schedule_label) == ["1f1b"]


def test_a_field_of_a_section_wins_over_the_section_in_any_order(experiment):
    for overrides in (["schedule=interleaved", "chunks=8"], ["chunks=8", "schedule=interleaved"]):
        assert _values(expand(experiment, "laptop", overrides), lambda p: p.schedule_label) == ["interleaved v=8"]
    axis = expand(experiment, "laptop", ["schedule=interleaved", "chunks=2,4"])
    assert _values(axis, lambda p: p.schedule.chunks) == [2, 4]


def test_sections_merge_and_names_replace(experiment):
    merged = expand(experiment, "laptop", ["model={layers: 4}", "parallel={data: 8}"])
    assert _values(merged, lambda p: (p.model.layers, p.model.hidden_size, p.parallel.data)) == [(4, 64, 8)]
    assert _values(merged, lambda p: p.parallel.tensor) == [1, 2]
    named = expand(experiment, "laptop", ["model=gpt-tiny", "model.layers=2"])
    assert _values(named, lambda p: (p.model.layers, p.model.hidden_size, p.model.dropout)) == [(2, 128, 0.0)]


def test_data_is_overridden_as_a_section_and_as_a_size(experiment):
    expansion = expand(experiment, "laptop", ["data={source: text}", "data=1,4"])
    assert _values(expansion, lambda p: (p.data.source, p.parallel.data)) == [("text", 1), ("text", 4)]


def test_list_valued_fields(experiment):
    one = expand(experiment, "laptop", ["split=[4,4]"])
    assert _values(one, lambda p: p.schedule.split) == [(4, 4)]
    assert _values(expand(experiment, "laptop", ["split=4,4"]), lambda p: p.schedule.split) == [(4, 4)]
    axis = expand(experiment, "laptop", ["split=[[4,4],[3,5]]"])
    assert _values(axis, lambda p: p.schedule.split) == [(3, 5), (4, 4)]
    order = expand(experiment, "laptop", ["order=[pipeline,data,tensor]"])
    assert _values(order, lambda p: p.parallel.order) == [("pipeline", "data", "tensor")]


def test_a_variable(experiment):
    expansion = expand(experiment, "laptop", ["k=1,2"])
    assert len(expansion.points) == 32
    assert _values(expansion, lambda p: p.training.learning_rate) == [1e-3, 2e-3]


def test_a_number_with_an_exponent_and_a_quoted_text(experiment):
    expansion = expand(experiment, "laptop", ["learning_rate=1e-3", 'data.path="a,b"'])
    assert _values(expansion, lambda p: (p.training.learning_rate, p.data.path)) == [(1e-3, "a,b")]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tensorr=2", "override 'tensorr=2': tensorr: names no field, section or variable; nearest: tensor"),
        (
            "modl.layers=2",
            "override 'modl.layers=2': modl.layers: names no field, section or variable; nearest: model.layers",
        ),
        (
            "name=x",
            "override 'name=x': name: the short name is not unique; write one of model.name, schedule.name",
        ),
        (
            "ranks=4",
            "override 'ranks=4': ranks: is computed from other fields and cannot be set; set one of "
            "parallel.tensor, parallel.pipeline, parallel.data",
        ),
        (
            "schedule=gpip",
            "override 'schedule=gpip': schedule.name: got 'gpip'; it must be one of "
            f"{', '.join(SCHEDULE_NAMES)}; nearest: gpipe",
        ),
        (
            "tensor=[1,-2]",
            "override 'tensor=[1,-2]': parallel.tensor: got -2; it must be a whole number of at least 1; nearest: 1",
        ),
        (
            "tensor=",
            "override 'tensor=': parallel.tensor: got null; it must be a whole number of at least 1; 1 would work",
        ),
        (
            "parallel=2",
            "override 'parallel=2': parallel: got 2; it must be a mapping of fields; parallel={tensor: 1} would work",
        ),
        (
            "parallel=zero1",
            "override 'parallel=zero1': parallel: got 'zero1'; it must be a mapping of fields; "
            "parallel={sharding: zero1} would work",
        ),
        (
            "data=text",
            "override 'data=text': parallel.data: got 'text'; it must be a whole number of at least 1; 1 would work, "
            "or data={source: text}",
        ),
        (
            "learning_rate=-1",
            "override 'learning_rate=-1': training.learning_rate: got -1; it must be a number above 0; "
            "0.0001 would work",
        ),
        (
            "loss_scale=0",
            "override 'loss_scale=0': training.loss_scale: got 0; it must be dynamic or a number above 0; "
            "dynamic would work",
        ),
        (
            "stall_seconds=1e300",
            "override 'stall_seconds=1e300': measure.stall_seconds: got 1e+300; it must be a number above 0 and up to "
            "10000000; nearest: 10000000.0",
        ),
        (
            "dropout=1.0",
            "override 'dropout=1.0': model.dropout: got 1.0; it must be a number of at least 0 and below 1; "
            "0.1 would work",
        ),
        ("tensor=[]", "override 'tensor=[]': tensor: an axis needs at least one value"),
        ("tensor", "override 'tensor': an override is written key=value"),
        ("=2", "override '=2': an override is written key=value"),
        (
            "tensor=[1",
            "override 'tensor=[1': not valid YAML: while parsing a flow sequence, expected ',' or ']', "
            "but got "
            "'<stream end>'",
        ),
    ],
)
def test_a_bad_override_is_named(experiment, override, message):
    with pytest.raises(BadInput) as caught:
        expand(experiment, "laptop", ["seed=3", override])
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_all_bad_overrides_are_said_at_once_and_one_key_is_given_once(experiment):
    with pytest.raises(BadInput) as caught:
        expand(experiment, "laptop", ["x=1", "y=2", "tensor=1", "parallel.tensor=2"])
    assert len(caught.value.problems) == 3
    assert "parallel.tensor is overridden twice" in str(caught.value)
