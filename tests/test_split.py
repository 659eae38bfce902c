"""The layers of each stage."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.experiment.point import Model
from suite.model.split import head_in_layers, layer_split


def model(layers: int, vocab_size: int = 256) -> Model:
    return Model(layers=layers, hidden_size=64, heads=4, vocab_size=vocab_size, seq_length=64)


def counts(layers: int, stages: int, **rest: int) -> list[int]:
    return [len(part) for part in layer_split(model(layers, **rest), stages)]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 100_000))
def test_every_layer_is_in_exactly_one_stage_and_no_stage_is_empty(extra, stages, vocab_size):
    parts = layer_split(model(stages + extra - 1, vocab_size), stages)
    assert [layer for part in parts for layer in part] == list(range(stages + extra - 1))
    assert all(parts)


def test_layers_that_divide_are_spread_evenly_whatever_the_head_costs():
    assert counts(8, 4, vocab_size=100_000) == [2, 2, 2, 2]


def test_what_is_left_over_goes_where_the_costliest_stage_stays_cheapest():
    assert head_in_layers(model(5)) == pytest.approx(2 * 64 * 256 / (24 * 64 * 64 + 4 * 64 * 64))
    assert counts(5, 4) == [2, 1, 1, 1]
    assert counts(7, 4) == [2, 2, 2, 1]
    assert counts(9, 2) == [5, 4]
    assert counts(9, 2, vocab_size=1800) == [6, 3]  # the head costs about 2 layers: 6 against 5, not 5 against 6
    assert counts(9, 2, vocab_size=5000) == [7, 2]  # about 5.6 layers
    assert counts(9, 2, vocab_size=20_000) == [8, 1]


@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 30_000))
def test_no_move_of_one_layer_makes_the_costliest_stage_cheaper(stages, extra, vocab_size):
    shape = model(stages + extra, vocab_size)
    sizes = [len(part) for part in layer_split(shape, stages)]
    if shape.layers % stages == 0:
        return
    costs = [float(size) for size in sizes]
    costs[-1] += head_in_layers(shape)
    top = costs.index(max(costs))
    if sizes[top] > 1:
        assert min(cost for stage, cost in enumerate(costs) if stage != top) + 1 >= costs[top] - 1e-9


def test_a_split_that_is_given_is_taken():
    assert [len(part) for part in layer_split(model(9), 3, (5, 1, 3))] == [5, 1, 3]


def test_a_million_layers_are_spread_at_once():
    begin = time.process_time()
    assert counts(10**6 - 1, 2) == [500_000, 499_999]
    assert set(counts(10**5 - 1, 49_999)) == {2, 3}
    assert time.process_time() - begin < 20
