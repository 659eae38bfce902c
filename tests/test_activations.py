"""Activation bytes between forward and backward: measured, against the formula that predictions use, within 10 %."""

import pytest
import torch
from layouts import point, training_step
from ranks import run_ranks

from suite.measure.memory import LiveTensorBytes
from suite.model.activations import fused_attention, stage_bytes
from suite.model.split import layer_split

MODEL = {"layers": 6, "hidden_size": 64, "heads": 4, "vocab_size": 256, "seq_length": 64}


def kept_bytes(at):
    """What this rank's first stage keeps of one microbatch after its forward pass, and what the formula says."""
    step = training_step(at)
    microbatch = step.batches.microbatch(0, 0)
    ((number, _), stage), *_ = step.stages.items()
    x = None
    if number:
        x = torch.randn(step.transport.shape, dtype=step.transport.dtype).requires_grad_()
    already = [*step.live_tensors(), microbatch.tokens, microbatch.targets, *([] if x is None else [x])]
    with LiveTensorBytes(already) as live:
        before = live.live
        output = stage(x, microbatch)
        kept = live.live - before
    if stage.head is None:
        kept -= output.nbytes  # the output itself is sent on, not kept
    if x is not None:
        kept += x.nbytes
    ends = stage.embedding is not None, stage.head is not None
    halves = layer_split(at.model, at.virtual_stages, at.schedule.split)[number]
    return kept, stage_bytes(at, halves, *ends, fused_attention(at))


def assert_close(pairs):
    for measured, predicted in pairs:
        assert predicted == pytest.approx(measured, rel=0.10)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_rank_keeps_what_the_formula_says(dropout, recompute, precision):
    model = {**MODEL, "dropout": dropout}
    at = point(model=model, batch=4, microbatch=2, training={"precision": precision, "recompute": recompute})
    assert_close([kept_bytes(at)])


def test_full_recomputation_of_several_layers_keeps_fewer_inputs():
    one, three = (
        point(model=MODEL, training={"precision": "fp32", "recompute": "full", "recompute_layers": k}) for k in (1, 3)
    )
    assert_close([kept_bytes(one), kept_bytes(three)])
    assert kept_bytes(three)[0] < kept_bytes(one)[0]


def test_recomputation_keeps_less_and_less():
    kept = [
        kept_bytes(point(model={**MODEL, "dropout": 0.1}, training={"precision": "fp32", "recompute": how}))[0]
        for how in ("none", "selective", "full")
    ]
    assert kept[0] > 1.5 * kept[1] > 1.5 * kept[2]


@pytest.mark.processes
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("layout", [(2, 1, 1), (2, 2, 1), (1, 3, 1)])
def test_every_rank_keeps_what_the_formula_says(layout, sequence):
    parallel = {**dict(zip(("tensor", "pipeline", "data"), layout, strict=True)), "sequence": sequence}
    at = point(layout, model={**MODEL, "dropout": 0.1}, parallel=parallel, training={"precision": "fp32"})
    assert_close(run_ranks(at.parallel.ranks, kept_bytes, at))


@pytest.mark.parametrize("split", [[2.5, 3.5], [3.5, 2.5]])
def test_half_a_layer_keeps_what_the_formula_says(split):
    at = point((1, 2, 1), {"name": "1f1b", "split": split}, model=MODEL, training={"precision": "fp32"})
    assert_close(run_ranks(2, kept_bytes, at))


def test_batched_attention_keeps_the_probabilities():
    at = point(model={**MODEL, "dropout": 0.0}, training={"precision": "fp32"}).model_copy(
        update={"kernels": "reference"}
    )
    measured, predicted = kept_bytes(at)
    assert predicted < measured  # the reference of norm and GELU keeps intermediate results, too
    fused = kept_bytes(point(model={**MODEL, "dropout": 0.0}, training={"precision": "fp32"}))[0]
    only = kept_bytes(
        point(model={**MODEL, "dropout": 0.0}, training={"precision": "fp32"}).model_copy(
            update={"kernels": {"attention": "reference"}}
        )
    )
    assert_close([only])
    assert only[0] > fused
