"""The layers of each stage."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.experiment.point import Model
from suite.model.split import head_in_layers, layer_counts, layer_split, layers_of, parts


def model(layers: int, vocab_size: int = 256) -> Model:
    return Model(layers=layers, hidden_size=64, heads=4, vocab_size=vocab_size, seq_length=64)


def counts(layers: int, stages: int, **rest: int) -> list[float]:
    return layer_counts(layer_split(model(layers, **rest), stages))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 100_000))
def test_every_layer_is_in_exactly_one_stage_and_no_stage_is_empty(extra, stages, vocab_size):
    layers = stages + extra - 1
    found = layer_split(model(layers, vocab_size), stages)
    assert [half for halves in found for half in halves] == list(range(2 * layers))
    assert all(found)
    assert [layer for halves in found for layer in layers_of(halves)] == list(range(layers)), "layers stay whole"


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
    sizes = layer_counts(layer_split(shape, stages))
    if shape.layers % stages == 0:
        return
    costs = [float(size) for size in sizes]
    costs[-1] += head_in_layers(shape)
    top = costs.index(max(costs))
    if sizes[top] > 1:
        assert min(cost for stage, cost in enumerate(costs) if stage != top) + 1 >= costs[top] - 1e-9


def test_a_split_that_is_given_is_taken():
    assert layer_counts(layer_split(model(9), 3, (5, 1, 3))) == [5, 1, 3]


def test_a_split_may_halve_layers_into_their_attention_and_feed_forward_part():
    found = layer_split(model(4), 3, (1.5, 0.5, 2))
    assert [layers_of(halves) for halves in found] == [
        {0: range(2), 1: range(2, 3)},
        {1: range(3, 4)},
        {2: range(4, 6), 3: range(6, 8)},
    ]
    assert [parts(halves) for halves in found] == [(2, 1), (0, 1), (2, 2)]
    assert layer_counts(found) == [1.5, 0.5, 2]


def test_a_million_layers_are_spread_at_once():
    begin = time.process_time()
    assert counts(10**6 - 1, 2) == [500_000, 499_999]
    assert set(counts(10**5 - 1, 49_999)) == {2, 3}
    assert time.process_time() - begin < 20
