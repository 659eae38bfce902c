"""Expansion: grid, zip, cases, union, scales, derive and require."""

import time

import pytest

from suite.experiment.catalogue import default_scale, load_experiment
from suite.experiment.errors import BadInput
from suite.experiment.expansion import Expansion, expand
from suite.experiment.point import Point

BASE = """\
model: {layers: 8, hidden_size: 64, heads: 8, vocab_size: 256, seq_length: 32}
training: {global_batch: 16}
"""


def _load(tmp_path, text):
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return load_experiment(path)


def _expand(tmp_path, text, scale="laptop", overrides=()) -> Expansion:
    return expand(_load(tmp_path, text), scale, overrides)


def _points(tmp_path, text, scale="laptop") -> list[Point]:
    expansion = _expand(tmp_path, text, scale)
    assert all(planned.point is not None for planned in expansion.points)
    return [planned.point for planned in expansion.points if planned.point]


def _layouts(points):
    return [(p.parallel.tensor, p.parallel.pipeline, p.parallel.data) for p in points]


def test_no_sweep_is_one_point_with_the_defaults(tmp_path):
    (planned,) = _expand(tmp_path, BASE).points
    expected = Point(
        model={"layers": 8, "hidden_size": 64, "heads": 8, "vocab_size": 256, "seq_length": 32},
        training={"global_batch": 16},
    )
    assert planned.point == expected
    assert planned.point_id == expected.id
    assert planned.configuration == expected.model_dump(mode="json")
    assert planned.reasons == []
    assert planned.valid
    assert planned.label == "1f1b (1,1,1) B=16"


def test_grid_multiplies_and_the_last_axis_varies_fastest(tmp_path):
    points = _points(tmp_path, BASE + "sweep: {grid: {tensor: [1, 2], parallel.data: [1, 2, 4]}}\n")
    assert _layouts(points) == [(1, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 1), (2, 1, 2), (2, 1, 4)]


def test_zip_walks_axes_together(tmp_path):
    points = _points(tmp_path, BASE + "sweep: {zip: {tensor: [1, 2, 4], pipeline: [4, 2, 1]}}\n")
    assert _layouts(points) == [(1, 4, 1), (2, 2, 1), (4, 1, 1)]


def test_cases_list_points(tmp_path):
    text = BASE + "sweep: {cases: [{tensor: 2}, {parallel: {pipeline: 2}, schedule: gpipe}, {}]}\n"
    points = _points(tmp_path, text)
    assert _layouts(points) == [(2, 1, 1), (1, 2, 1), (1, 1, 1)]
    assert [p.schedule.name for p in points] == ["1f1b", "gpipe", "1f1b"]


def test_parts_of_one_mapping_multiply(tmp_path):
    text = (
        BASE
        + """\
sweep:
  grid: {seed: [1, 2]}
  zip: {tensor: [1, 2], pipeline: [2, 1]}
  cases: [{data: 1}, {data: 2}]
"""
    )
    points = _points(tmp_path, text)
    assert len(points) == 8
    assert _layouts(points)[:4] == [(1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)]


def test_a_list_of_sweeps_is_their_union_and_repetitions_are_counted(tmp_path):
    text = BASE + "sweep: [{grid: {tensor: [1, 2]}}, {cases: [{tensor: 2}, {tensor: 4}]}]\n"
    expansion = _expand(tmp_path, text)
    assert [planned.point.parallel.tensor for planned in expansion.points] == [1, 2, 4]
    assert expansion.dropped == 1


def test_points_are_one_by_their_configuration_not_by_what_they_are_called(tmp_path):
    text = BASE + "sweep: {cases: [{tensor: 2}, {parallel: {tensor: 2, data: 1}}, {schedule: 1f1b, tensor: 2}]}\n"
    expansion = _expand(tmp_path, text)
    assert [planned.label for planned in expansion.points] == ["tensor=2"]
    assert expansion.dropped == 2


def test_a_section_on_an_axis_goes_over_the_base_and_a_schedule_replaces_it(tmp_path):
    text = (
        BASE
        + """\
parallel: {data: 2}
schedule: {name: interleaved, chunks: 4, group: 2}
sweep:
  grid:
    parallel: [{tensor: 2}, {pipeline: 2}]
    schedule: [gpipe, {name: interleaved}, {name: interleaved, chunks: 3}, {chunks: 2}]
"""
    )
    points = _points(tmp_path, text)
    assert _layouts(points)[::4] == [(2, 1, 2), (1, 2, 2)]
    schedules = [(p.schedule.name, p.schedule.chunks, p.schedule.group) for p in points[:4]]
    assert schedules == [
        ("gpipe", 1, None),
        ("interleaved", 2, None),
        ("interleaved", 3, None),
        ("interleaved", 2, 2),  # no name: fields over the base's schedule
    ]


def test_the_order_of_axes_does_not_decide_what_a_named_schedule_keeps(tmp_path):
    before = _points(tmp_path, BASE + "sweep: {grid: {chunks: [2, 4], schedule: [interleaved]}}\n")
    after = _points(tmp_path, BASE + "sweep: {grid: {schedule: [interleaved], chunks: [2, 4]}}\n")
    assert [p.schedule.chunks for p in before] == [2, 4]
    assert before == after


def test_a_named_model_replaces_the_shape_and_keeps_what_is_no_shape(tmp_path):
    text = """\
model: {layers: 8, hidden_size: 64, heads: 8, ffn_hidden_size: 100, dropout: 0}
training: {global_batch: 16}
sweep:
  grid:
    model:
    - gpt-nano
    - {name: gpt-tiny, layers: 2}
    - {layers: 3}
    - {name: mine, layers: 1, hidden_size: 8, heads: 1}
"""
    nano, tiny, own, mine = (p.model for p in _points(tmp_path, text))
    assert (nano.name, nano.layers, nano.hidden_size, nano.ffn_hidden_size) == ("gpt-nano", 4, 64, 256)
    assert (tiny.name, tiny.layers, tiny.hidden_size) == ("gpt-tiny", 2, 128)
    assert (own.name, own.layers, own.ffn_hidden_size) == (None, 3, 100)
    assert (mine.name, mine.layers, mine.ffn_hidden_size, mine.vocab_size) == ("mine", 1, 32, 51200)
    assert {model.dropout for model in (nano, tiny, own, mine)} == {0}


def test_data_is_the_section_or_the_size_by_its_value(tmp_path):
    points = _points(tmp_path, BASE + "sweep: {cases: [{data: 2}, {data: {source: text}}]}\n")
    assert [(p.parallel.data, p.data.source) for p in points] == [(2, "synthetic"), (1, "text")]


def test_a_list_valued_field_takes_a_list_per_value(tmp_path):
    text = BASE + "parallel: {pipeline: 2}\nsweep: {grid: {split: [[4, 4], [3, 5], null]}}\n"
    assert [p.schedule.split for p in _points(tmp_path, text)] == [(4, 4), (3, 5), None]


def test_scales_lie_over_the_top_level(tmp_path):
    text = (
        BASE
        + """\
parallel: {tensor: 2}
sweep: {grid: {seed: [1, 2, 3]}}
scales:
  laptop: {parallel: {pipeline: 2}}
  wide: {parallel: {tensor: 4}, training: {microbatch: 2}, sweep: {grid: {seed: [7]}}}
"""
    )
    laptop = _points(tmp_path, text)
    assert _layouts(laptop) == [(2, 2, 1)] * 3
    (wide,) = _points(tmp_path, text, "wide")
    assert (wide.parallel.tensor, wide.training.microbatch, wide.training.global_batch) == (4, 2, 16)
    assert wide.training.seed == 7


def test_the_default_scale(tmp_path):
    assert default_scale(_load(tmp_path, BASE)) == "laptop"
    assert default_scale(_load(tmp_path, BASE + "scales: {paper: {}, laptop: {}}\n")) == "laptop"
    assert default_scale(_load(tmp_path, BASE + "scales: {paper: {}}\n")) == "paper"
    with pytest.raises(BadInput, match="no scale 'laptop'; choose one with --scale: paper, wide"):
        default_scale(_load(tmp_path, BASE + "scales: {paper: {}, wide: {}}\n"))


def test_derive_is_computed_in_the_order_of_its_dependencies(tmp_path):
    text = """\
model: {layers: 8, hidden_size: 64, heads: 8}
variables: {per_rank: 4, total: 0}
sweep: {grid: {tensor: [1, 2], per_rank: [4, 8]}}
derive:
  learning_rate: 1e-3 * global_batch / 8
  global_batch: total * microbatch
  total: per_rank * ranks
  microbatch: virtual_stages
  pipeline: 4 / tensor
"""
    points = _points(tmp_path, text)
    assert _layouts(points) == [(1, 4, 1), (1, 4, 1), (2, 2, 1), (2, 2, 1)]
    assert [p.training.microbatch for p in points] == [4, 4, 2, 2]
    assert [p.training.global_batch for p in points] == [64, 128, 32, 64]
    assert points[0].training.learning_rate == pytest.approx(8e-3)


def test_defaults_can_be_read_by_expressions(tmp_path):
    text = (
        BASE
        + """\
schedule: interleaved
derive: {microbatch: chunks, seed: ffn_hidden_size + seq_length}
require:
- schedule == 'interleaved'
- "model.name == 'x' or precision in ('fp32', 'fp64')"
- microbatches == 8
"""
    )
    (planned,) = _expand(tmp_path, text).points
    assert planned.point.training.microbatch == 2
    assert planned.point.training.seed == 4 * 64 + 32
    assert planned.reasons == []


def test_a_derived_value_that_does_not_suit_makes_the_point_invalid_and_not_the_others(tmp_path):
    text = BASE + "variables: {k: 1}\nderive: {data: 4 / k}\nsweep: {grid: {k: [1, 3, 0]}}\n"
    good, fraction, undefined = _expand(tmp_path, text).points
    assert good.valid
    assert good.point.parallel.data == 4
    assert fraction.point is None
    assert fraction.reasons == [
        "parallel.data is derived as '4 / k': got 1.3333333333333333; it must be a whole number of at "
        "least 1; "
        "nearest: 1 (k is 3)"
    ]
    assert undefined.point is None
    assert undefined.reasons == ["parallel.data is derived as '4 / k', which has no value: division by zero (k is 0)"]
    assert len({good.point_id, fraction.point_id, undefined.point_id}) == 3
    assert fraction.configuration["model"]["layers"] == 8


def test_a_scale_that_sets_or_sweeps_a_field_needs_no_derivation_of_it(tmp_path):
    text = (
        BASE
        + """\
derive: {data: 2, microbatch: 2}
scales:
  laptop: {}
  fixed: {parallel: {data: 4}}
  swept: {sweep: {grid: {data: [1, 8]}}}
  other: {derive: {data: 16}}
"""
    )
    assert [
        [p.parallel.data for p in _points(tmp_path, text, scale)] for scale in ("laptop", "fixed", "swept", "other")
    ] == [
        [2],
        [4],
        [1, 8],
        [16],
    ]


def test_require_says_the_rule_its_values_and_its_reason(tmp_path):
    text = (
        BASE
        + """\
sweep: {grid: {tensor: [1, 2]}}
require:
- {that: heads // tensor > 4, because: small heads are slow}
- global_batch % tensor == 0
"""
    )
    good, bad = _expand(tmp_path, text).points
    assert good.valid
    assert not bad.valid
    assert bad.reasons == [
        "the rule 'heads // tensor > 4' does not hold (heads is 8, tensor is 2): small heads are slow"
    ]
    assert bad.point is not None


def test_a_rule_without_a_value_or_without_a_truth_is_broken(tmp_path):
    text = BASE + 'require: ["group * 2 > 1", "scatter_gather or seed"]\n'
    (planned,) = _expand(tmp_path, text).points
    assert planned.reasons == [
        "the rule 'group * 2 > 1' has no value: a value that is not set is used as a number (group is null)",
        "the rule 'scatter_gather or seed' gives 1234, which is neither true nor false (scatter_gather "
        "is false, "
        "seed is 1234)",
    ]


def test_a_field_that_nothing_gives_is_said_once(tmp_path):
    text = "parallel: {tensor: 2}\nscales:\n  laptop: {model: gpt-nano}\nsweep: {grid: {seed: [1, 2, 3]}}\n"
    experiment = _load(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        expand(experiment, "laptop")
    (problem,) = caught.value.problems
    assert str(problem) == (
        f"{tmp_path}/experiment.yaml:3:3: training.global_batch: is not set at scale laptop, and has no "
        f"default; "
        "give it"
    )
    assert len(expand(experiment, "laptop", ["global_batch=8"]).points) == 3


def test_a_cluster_that_is_not_there_is_said_where_it_was_written(tmp_path):
    experiment = _load(tmp_path, BASE + "sweep: {grid: {cluster: [local, locall], seed: [1, 2]}}\n")
    with pytest.raises(BadInput) as caught:
        expand(experiment, "laptop")
    (problem,) = caught.value.problems
    assert str(problem) == (f"{tmp_path}/experiment.yaml:3:33: cluster: there is no cluster 'locall'; nearest: local")


def test_labels_say_what_varies(tmp_path):
    text = (
        BASE + "sweep: {grid: {schedule: [1f1b, {name: interleaved, chunks: 4}], global_batch: [8, 16], tensor: [2]}}\n"
    )
    assert [planned.label for planned in _expand(tmp_path, text).points] == [
        "schedule=1f1b global_batch=8",
        "schedule=1f1b global_batch=16",
        "schedule=interleaved chunks=4 global_batch=8",
        "schedule=interleaved chunks=4 global_batch=16",
    ]


def test_ten_thousand_points_take_seconds(tmp_path):
    text = BASE + (
        "variables: {k: 1}\nsweep: {grid: {tensor: [1, 2, 3, 4], pipeline: [1, 2, 4, 8, 16], k: [1, 2, "
        "3, 4, 5], "
        f"seed: {list(range(100))}}}}}\nderive: {{microbatch: k}}\nrequire: [ranks <= 16]\n"
    )
    experiment = _load(tmp_path, text)
    start = time.perf_counter()
    assert len(expand(experiment, "laptop").points) == 10_000
    assert time.perf_counter() - start < 30  # about 2 s on an idle machine


def test_a_sweep_that_is_far_too_large_is_refused_at_once(tmp_path):
    values = list(range(1, 200))
    text = BASE + f"sweep: {{grid: {{seed: {values}, data: {values}, tensor: {values}}}}}\n"
    with pytest.raises(BadInput, match="7880599 points"):
        _expand(tmp_path, text)
