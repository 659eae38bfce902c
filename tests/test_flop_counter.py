"""The FLOP formulas against torch's own counter on a tiny model, and against a count by hand."""

import pytest
import torch
from layouts import point, training_step
from torch.utils.flop_counter import FlopCounterMode

from suite.measure.flops import hardware_flops, model_flops

MODEL = {"layers": 2, "hidden_size": 12, "heads": 3, "ffn_hidden_size": 20, "vocab_size": 67, "seq_length": 5}


def _in_place(main, rows, columns, **options):
    """Of a weight gradient's product, which adds to the main gradient; torch's counter knows only the other form."""
    return 2 * rows[0] * rows[1] * columns[1]


def counted(model, microbatch, recompute="none"):
    """FLOPs of one microbatch, forward and backward, as torch counts the matrix products it sees."""
    at = point(batch=microbatch, microbatch=microbatch, model=model, training={"recompute": recompute})
    step = training_step(at.model_copy(update={"kernels": {"attention": "reference"}}))
    in_place = {torch.ops.aten.addmm_: _in_place}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        step.gradients(0)
    return counter.get_total_flops(), at.model


def test_count_by_hand_torchs_count_and_the_formula_agree():
    """h = 12, f = 20, s = 5, 3 heads of 4, 67 tokens padded to 128, 2 layers, 1 sequence; 2abc a product."""
    layer = (
        2 * 5 * 12 * 36  # queries, keys and values
        + 3 * (2 * 5 * 4 * 5)  # scores of 3 heads
        + 3 * (2 * 5 * 5 * 4)  # probabilities times values
        + 2 * 5 * 12 * 12  # output projection
        + 2 * 5 * 12 * 20  # feed-forward, out
        + 2 * 5 * 20 * 12  # feed-forward, back
    )
    by_hand = 3 * (2 * layer + 2 * 5 * 12 * 128)
    torchs, model = counted(MODEL, 1)
    assert by_hand == 3 * (2 * 11760 + 15360) == 116640
    assert torchs == by_hand
    assert hardware_flops(model, 1, 1, "none") == by_hand
    assert model_flops(model, 1) == by_hand - 3 * 2 * 5 * 12 * (128 - 67)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"layers": 1, "heads": 1, "ffn_hidden_size": 48, "vocab_size": 256},
        {"layers": 3, "heads": 6, "seq_length": 8, "tied_embeddings": False},
    ],
)
def test_torch_counts_what_the_formula_says(shape, dropout, recompute):
    torchs, model = counted({**MODEL, **shape, "dropout": dropout}, 2, recompute)
    assert torchs == hardware_flops(model, 2, 1, recompute)
