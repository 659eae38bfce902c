"""A point's id: the same configuration has the same id, whatever it is called and wherever it is."""

import json
import string

import pytest

from suite.experiment.models import MODELS
from suite.experiment.point import Point

MODEL = {"layers": 4, "hidden_size": 64, "heads": 4}


def _id(**sections) -> str:
    return _point(**sections).id


def _point(**sections) -> Point:
    return Point.model_validate(
        {"model": MODEL, **sections, "training": {"global_batch": 8, **sections.get("training", {})}}
    )


def test_an_id_is_eight_hex_digits_that_never_change():
    assert _id() == "10ada76f"
    assert set(_id()) <= set(string.hexdigits.lower())


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"tensor": 1, "sharding": "none", "order": ["tensor", "data", "pipeline"]}},
        {"schedule": "1f1b"},
        {"schedule": {"name": "1f1b", "chunks": 1, "group": None}},
        {"training": {"microbatch": 1, "learning_rate": 0.0001, "gradient_clip": 1}},
        {"model": {**MODEL, "name": "a label"}},
        {"model": {**MODEL, "ffn_hidden_size": 256}},
        {"data": {"source": "synthetic", "path": "/somewhere/else"}},
        {"measure": {"launches": 5}},
        {"cluster": "local", "kernels": "auto"},
    ],
)
def test_defaults_labels_paths_and_launches_change_no_id(sections):
    assert _id(**sections) == _id()


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"tensor": 2}},
        {"parallel": {"order": ["data", "tensor", "pipeline"]}},
        {"schedule": "gpipe"},
        {"schedule": {"split": [4]}},
        {"training": {"global_batch": 16}},
        {"training": {"seed": 1}},
        {"training": {"loss_scale": 2}},
        {"model": {**MODEL, "ffn_hidden_size": 128}},
        {"model": {**MODEL, "dropout": 0}},
        {"data": {"source": "text"}},
        {"measure": {"iterations": 11}},
        {"measure": {"trace": True}},
        {"cluster": "other"},
        {"kernels": {"attention": "torch"}},
    ],
)
def test_what_is_part_of_the_configuration_changes_the_id(sections):
    assert _id(**sections) != _id()


def test_the_default_number_of_chunks_and_the_same_number_given_are_one_point():
    assert _id(schedule="interleaved") == _id(schedule={"name": "interleaved", "chunks": 2})
    assert _id(schedule="interleaved") != _id(schedule={"name": "interleaved", "chunks": 4})


@pytest.mark.parametrize("name", MODELS)
def test_a_model_by_name_and_the_same_shape_are_one_point(name):
    assert _id(model=name) == _id(model=dict(MODELS[name]))


def test_whole_numbers_and_floats_of_one_value_are_one_point():
    assert _id(training={"learning_rate": 1}) == _id(training={"learning_rate": 1.0})
    assert _id(training={"loss_scale": 8}) == _id(training={"loss_scale": 8.0})


def test_a_point_comes_back_from_its_record_with_its_id():
    point = _point(schedule={"name": "interleaved", "split": [1, 1, 1, 1]}, kernels={"attention": "torch"})
    again = Point.model_validate(json.loads(json.dumps(point.model_dump(mode="json"))))
    assert again == point
    assert again.id == point.id


@pytest.mark.parametrize("value", [True, "4", 4.0, 2.5, 0, -1, None])
def test_only_a_whole_number_is_a_count(value):
    with pytest.raises(ValueError, match="tensor"):
        _point(parallel={"tensor": value})
