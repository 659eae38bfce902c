"""Dropout masks: a function of seed, iteration, sequence, layer, site and head, and of nothing else."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.kernels.dropout_mask import dropped
from suite.model.dropout import SITES, Dropout

HIDDEN_SITES = [site for site in SITES if site != "attention"]


def hidden_mask(rows=16, width=32, sequences=(0,), layer=0, site="mlp_output", first=0, **changes):
    """What is kept of hidden activations [s, b, h], as booleans."""
    at = {"rate": 0.5, "seed": 1, "iteration": 2, **changes}
    x = torch.ones(rows, len(sequences), width, dtype=torch.float64)
    return Dropout(sequences=tuple(sequences), **at).hidden(x, layer, site, first) != 0


def attention_mask(s=16, heads=range(4), sequences=(0,), layer=0, **changes):
    """What is kept of attention probabilities [b, heads, s, s], as booleans."""
    at = {"rate": 0.5, "seed": 1, "iteration": 2, **changes}
    x = torch.ones(len(sequences), len(heads), s, s, dtype=torch.float64)
    return dropped(x, Dropout(sequences=tuple(sequences), **at).attention_mask(x.device, layer, heads)) != 0


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(st.integers(0, 2000), min_size=1, max_size=8, unique=True),
    size=st.integers(1, 8),
    site=st.sampled_from(HIDDEN_SITES),
)
def test_hidden_masks_do_not_depend_on_how_sequences_are_grouped(sequences, size, site):
    whole = hidden_mask(sequences=sequences, site=site)
    parts = [hidden_mask(sequences=sequences[i : i + size], site=site) for i in range(0, len(sequences), size)]
    assert torch.equal(torch.cat(parts, dim=1), whole)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 16))
def test_hidden_masks_do_not_depend_on_how_the_sequence_is_cut(size):
    whole = hidden_mask(sequences=(3, 4))
    parts = [hidden_mask(min(size, 16 - row), sequences=(3, 4), first=row) for row in range(0, 16, size)]
    assert torch.equal(torch.cat(parts), whole)


@settings(max_examples=40, deadline=None)
@given(heads=st.integers(1, 8), size=st.integers(1, 8), group=st.integers(1, 3))
def test_attention_masks_do_not_depend_on_how_heads_and_sequences_are_cut(heads, size, group):
    whole = attention_mask(heads=range(heads), sequences=(5, 6, 7))
    rows = []
    for first in range(0, 3, group):
        sequences = (5, 6, 7)[first : first + group]
        ends = [(start, min(start + size, heads)) for start in range(0, heads, size)]
        rows.append(torch.cat([attention_mask(heads=range(*end), sequences=sequences) for end in ends], dim=1))
    assert torch.equal(torch.cat(rows), whole)


def test_the_same_key_gives_the_same_mask_again():
    assert torch.equal(hidden_mask(), hidden_mask())
    assert torch.equal(attention_mask(), attention_mask())


def test_masks_differ_across_seed_iteration_sequence_layer_and_site():
    masks = [hidden_mask()]
    masks += [hidden_mask(seed=2), hidden_mask(iteration=1), hidden_mask(sequences=(1,)), hidden_mask(layer=1)]
    masks += [hidden_mask(site=site) for site in HIDDEN_SITES if site != "mlp_output"]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(masks, 2))


def test_attention_masks_differ_across_seed_iteration_sequence_layer_and_head():
    masks = [*attention_mask()[0]]
    for change in ({"seed": 2}, {"iteration": 1}, {"sequences": (1,)}, {"layer": 1}):
        masks += [*attention_mask(**change)[0]]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(masks, 2))


def test_swapped_parts_of_a_key_do_not_collide():
    assert not torch.equal(hidden_mask(seed=3, iteration=5), hidden_mask(seed=5, iteration=3))
    assert not torch.equal(hidden_mask(iteration=3, sequences=(5,)), hidden_mask(iteration=5, sequences=(3,)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_of_what_is_kept_is_within_four_sigma(rate):
    for mask in (hidden_mask(128, 128, range(8), rate=rate), attention_mask(64, range(8), range(4), rate=rate)):
        sigma = math.sqrt(rate * (1 - rate) / mask.numel())
        assert mask.double().mean().item() == pytest.approx(1 - rate, abs=4 * sigma)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_is_kept_is_scaled_and_so_is_its_gradient(rate):
    x = torch.randn(16, 2, 32, dtype=torch.float64, requires_grad=True)
    y = Dropout(rate, 1, 2, (0, 1)).hidden(x, 0, "mlp_output")
    kept = hidden_mask(sequences=(0, 1), rate=rate)
    torch.testing.assert_close(y, torch.where(kept, x / (1 - rate), 0.0))
    y.backward(torch.full_like(y, 3.0))
    torch.testing.assert_close(x.grad, torch.where(kept, 3.0 / (1 - rate), 0.0).double())


def test_neighbouring_keys_and_neighbouring_elements_are_not_correlated():
    """Correlations of n fair coins have a standard deviation of 1/sqrt(n); six of them are far outside chance."""
    base = hidden_mask(128, 128).double() - 0.5
    limit = 6 * 0.25 / math.sqrt(base.numel())
    neighbours = [
        hidden_mask(128, 128, **change)
        for change in ({"seed": 2}, {"iteration": 3}, {"sequences": (1,)}, {"layer": 1}, {"site": "attention_output"})
    ]
    for other in neighbours:
        assert abs((base * (other.double() - 0.5)).mean().item()) < limit
    for shift in (1, 2, 16, 64, 128, 129, 4096):
        rolled = base.flatten().roll(shift)
        assert abs((base.flatten() * rolled).mean().item()) < limit, shift
    first, *others = (mask.double() - 0.5 for mask in attention_mask(128, range(4))[0])
    for other in others:
        assert abs((first * other).mean().item()) < limit


def test_no_row_or_column_is_kept_more_often_than_others():
    mask = hidden_mask(256, 256).squeeze(1).double()
    for dimension in (0, 1):
        shares = mask.mean(dim=dimension)
        assert (shares - 0.5).abs().max().item() < 6 * 0.5 / math.sqrt(256)


def test_rate_zero_is_the_identity():
    x = torch.randn(4, 1, 8)
    assert Dropout(0.0, 1, 2, (0,)).hidden(x, 0, "embedding") is x
