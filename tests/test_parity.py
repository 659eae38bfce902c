"""Parity: every layout and schedule has the single process's loss, gradient norm and gradients, in fp64."""

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layouts import gradients, point

from suite.parallel import host_memory

INTERLEAVED_3 = {"name": "interleaved", "chunks": 3}
GROUP_3 = {"name": "interleaved", "chunks": 2, "group": 3}

LAYOUTS = [
    # (tensor, pipeline, data), schedule, layers, global batch, microbatch
    ((2, 1, 1), "1f1b", 4, 8, 1),
    ((4, 1, 1), "1f1b", 4, 8, 2),
    ((1, 2, 1), "gpipe", 4, 8, 1),
    ((1, 2, 1), "1f1b", 5, 8, 1),
    ((1, 2, 1), "interleaved", 5, 8, 1),
    ((1, 2, 1), INTERLEAVED_3, 7, 8, 1),
    ((1, 2, 1), GROUP_3, 4, 5, 1),
    ((1, 1, 1), "interleaved", 4, 8, 2),
    ((1, 3, 1), "1f1b", 4, 7, 1),
    ((1, 4, 1), "gpipe", 6, 3, 1),
    ((1, 4, 1), "1f1b", 6, 8, 1),
    ((1, 4, 1), "1f1b", 4, 2, 1),
    ((1, 4, 1), "interleaved", 9, 8, 1),
    ((1, 4, 1), {"name": "interleaved", "chunks": 2, "group": 5}, 8, 10, 1),
    ((1, 1, 2), "1f1b", 4, 8, 2),
    ((1, 1, 4), "1f1b", 4, 8, 1),
    ((1, 1, 2), "interleaved", 4, 8, 1),
    ((2, 2, 1), "interleaved", 5, 8, 1),
    ((2, 1, 2), "1f1b", 4, 8, 1),
    ((1, 2, 2), "interleaved", 5, 8, 1),
    ((1, 2, 2), "gpipe", 4, 8, 2),
    ((1, 4, 2), "1f1b", 5, 8, 1),
    ((2, 2, 2), "1f1b", 5, 8, 1),
    ((2, 2, 2), INTERLEAVED_3, 7, 8, 1),
    ((4, 2, 1), "gpipe", 4, 6, 1),
    ((1, 8, 1), "1f1b", 9, 8, 1),
]


@functools.cache
def single(layers: int, batch: int, microbatch: int, tied: bool) -> dict[str, Any]:
    return gradients(point(batch=batch, microbatch=microbatch, model={"layers": layers, "tied_embeddings": tied}))


def assert_parity(other: dict[str, Any], reference: dict[str, Any], tolerance: float = 1e-10) -> None:
    assert other["loss"] == pytest.approx(reference["loss"], rel=tolerance)
    assert other["norm"] == pytest.approx(reference["norm"], rel=tolerance)
    assert other["gradients"].keys() == reference["gradients"].keys()
    for name, gradient in other["gradients"].items():
        worst = (gradient - reference["gradients"][name]).abs().max().item()
        assert worst <= tolerance * reference["norm"], name


@pytest.mark.processes
@pytest.mark.parametrize(("layout", "schedule", "layers", "batch", "microbatch"), LAYOUTS)
def test_layout_has_the_single_process_gradients(layout, schedule, layers, batch, microbatch):
    at = point(layout, schedule, batch, microbatch, model={"layers": layers})
    assert_parity(gradients(at), single(layers, batch, microbatch, True))


@pytest.mark.processes
@pytest.mark.parametrize("order", [("data", "pipeline", "tensor"), ("pipeline", "tensor", "data")])
def test_order_of_the_dimensions_changes_nothing(order):
    at = point((2, 2, 2), "interleaved", parallel={"tensor": 2, "pipeline": 2, "data": 2, "order": order})
    assert_parity(gradients(at), single(4, 8, 1, True))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "schedule", "sections"),
    [
        ((1, 2, 1), {"name": "1f1b", "split": [2.5, 1.5]}, {}),
        ((1, 2, 1), {"name": "zb-v", "split": [0.5, 1.5, 0.5, 1.5]}, {}),
        ((2, 2, 1), {"name": "interleaved", "chunks": 2, "split": [1.5, 1, 0.5, 1]}, {"parallel": {"sequence": True}}),
        ((1, 2, 1), {"name": "1f1b", "split": [1.5, 2.5]}, {"training": {"recompute": "full", "recompute_layers": 2}}),
    ],
)
def test_stages_that_begin_or_end_within_a_layer_change_nothing(layout, schedule, sections):
    parallel = dict(zip(("tensor", "pipeline", "data"), layout, strict=True)) | sections.get("parallel", {})
    at = point(layout, schedule, **sections | {"parallel": parallel})
    assert_parity(gradients(at), single(4, 8, 1, True))


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 2, 2)])
def test_untied_head_has_the_single_process_gradients(layout):
    at = point(layout, "interleaved", model={"tied_embeddings": False})
    assert_parity(gradients(at), single(4, 8, 1, False))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "recompute"),
    [((2, 1, 1), "selective"), ((2, 2, 1), "full"), ((4, 2, 1), "none"), ((4, 2, 1), "selective"), ((2, 2, 2), "full")],
)
def test_sequence_parallelism_and_recomputation_change_nothing(layout, recompute):
    parallel = {**dict(zip(("tensor", "pipeline", "data"), layout, strict=True)), "sequence": True}
    training = {"recompute": recompute, "recompute_layers": 2}
    at = point(layout, "interleaved", model={"layers": 7}, parallel=parallel, training=training)
    assert_parity(gradients(at), single(7, 8, 1, True))


@pytest.mark.parametrize("training", [{"recompute": "selective"}, {"recompute": "full"}])
def test_recomputation_alone_changes_nothing(training):
    assert_parity(gradients(point(training=training)), single(4, 8, 1, True))


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(2, 2, 1), (4, 2, 1)])
def test_scatter_gather_sends_one_share_per_tensor_rank_and_changes_nothing(layout):
    parallel = dict(zip(("tensor", "pipeline", "data"), layout, strict=True))
    plain = gradients(point(layout, "interleaved"))
    shared = gradients(point(layout, "interleaved", parallel={**parallel, "scatter_gather": True}))
    assert_parity(shared, single(4, 8, 1, True))
    for before, after in zip(plain["ranks"], shared["ranks"], strict=True):
        assert before["pipeline_bytes"] == layout[0] * after["pipeline_bytes"] > 0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "sequence", "tied"), [((1, 1, 2), False, True), ((1, 2, 2), False, True), ((2, 2, 2), True, True),
                                     ((1, 1, 3), False, True), ((1, 2, 2), False, False)]
)  # fmt: skip
def test_sharded_optimizer_has_the_single_process_gradients(layout, sequence, tied):
    parallel = dict(zip(("tensor", "pipeline", "data"), layout, strict=True))
    batch = 4 * layout[2]
    sections = {"parallel": {**parallel, "sharding": "zero1", "sequence": sequence}, "model": {"tied_embeddings": tied}}
    at = point(layout, "1f1b", batch=batch, **sections)
    assert_parity(gradients(at), single(4, batch, 1, tied))


@pytest.mark.processes
@pytest.mark.parametrize(("ranks", "tied"), [(2, True), (4, True), (3, False)])
def test_fully_sharded_has_the_single_process_gradients(ranks, tied):
    sections = {"parallel": {"data": ranks, "sharding": "zero3"}, "model": {"tied_embeddings": tied}}
    at = point((1, 1, ranks), batch=2 * ranks, **sections)
    assert_parity(gradients(at), single(4, 2 * ranks, 1, tied))


@pytest.mark.processes
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_fully_sharded_recomputes_without_gathering_again(recompute):
    parallel = {"data": 2, "sharding": "zero3"}
    plain = gradients(point((1, 1, 2), parallel=parallel))
    again = gradients(point((1, 1, 2), parallel=parallel, training={"recompute": recompute}))
    assert_parity(again, single(4, 8, 1, True))
    for before, after in zip(plain["ranks"], again["ranks"], strict=True):
        assert after["data_bytes"] == before["data_bytes"] > 0


@pytest.mark.processes
@pytest.mark.parametrize("hosts", [8, 2, 1])
def test_ranks_that_share_no_memory_use_torchs_backend(monkeypatch, hosts):
    per_host = 8 // hosts
    monkeypatch.setattr(host_memory, "this_host", lambda: str(dist.get_rank() // per_host) if per_host > 1 else None)
    parallel = {"tensor": 2, "pipeline": 2, "data": 2, "scatter_gather": True, "sharding": "zero1"}
    result = gradients(point((2, 2, 2), "interleaved", parallel=parallel))
    assert_parity(result, single(4, 8, 1, True))
    # Tensor ranks are neighbours, pipeline ranks are furthest from each other.
    shared = {8: set(), 2: {"tensor", "data"}, 1: {"tensor", "data", "pipeline", "messages"}}[hosts]
    assert all(rank["memory"] == shared for rank in result["ranks"])


@pytest.mark.processes
def test_fully_sharded_gathers_twice_and_reduces_once_per_microbatch():
    """And the stage's own parameters, which are not its layers', once: they are kept until the backward pass."""
    model = {"vocab_size": 128}  # needs no padding, as no other size does
    at = point((1, 1, 2), batch=4, parallel={"data": 2, "sharding": "zero3"}, model=model)
    result = gradients(at)
    size = {name: gradient.numel() for name, gradient in result["gradients"].items()}
    layers = sum(count for name, count in size.items() if name.startswith("layers."))
    rest = sum(size.values()) - layers
    elements = result["ranks"][0]["data_bytes"] / 8
    gathered = (2 * layers + rest) / 2  # a rank hands in its half
    assert elements == at.microbatches * (gathered + layers + rest)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "schedule", "sharding"),
    [((1, 1, 2), "1f1b", "none"), ((1, 2, 2), "interleaved", "zero1"), ((1, 2, 2), "zb-h1", "none"),
     ((1, 2, 2), "dualpipe", "none")],
)  # fmt: skip
def test_reduction_after_the_backward_pass_changes_nothing(layout, schedule, sharding):
    parallel = dict(zip(("tensor", "pipeline", "data"), layout, strict=True))
    parallel.update(sharding=sharding, overlap_reduction=False)
    found = gradients(point(layout, schedule, parallel=parallel))
    assert_parity(found, single(4, 8, 1, True))
    for rank in found["ranks"]:
        assert rank["reductions"], "there is something to reduce"
        assert min(start for start in rank["reductions"]) >= rank["last_action"]


@pytest.mark.processes
def test_reduction_starts_during_the_backward_pass():
    (first, *_) = gradients(point((1, 2, 2), "interleaved"))["ranks"]
    assert min(first["reductions"]) < first["last_action"]


@pytest.mark.processes
def test_sharded_optimizer_keeps_one_share_of_the_state():
    training = {"optimizer": "adamw"}
    whole = gradients(point((1, 1, 4), training=training))
    for sharding in ("zero1", "zero3"):
        shared = gradients(point((1, 1, 4), parallel={"data": 4, "sharding": sharding}, training=training))
        for before, after in zip(whole["ranks"], shared["ranks"], strict=True):
            assert after["optimizer_bytes"] == pytest.approx(before["optimizer_bytes"] / 4, rel=0.01)


@pytest.mark.processes
def test_microbatch_size_changes_nothing():
    assert_parity(gradients(point((1, 2, 1), batch=8, microbatch=4)), single(4, 8, 1, True))


def test_parity_would_notice_a_wrong_gradient():
    reference = single(4, 8, 1, True)
    name = "layers.1.attention.qkv.bias"
    wrong = {**reference, "gradients": {**reference["gradients"], name: reference["gradients"][name] + 1e-6}}
    with pytest.raises(AssertionError):
        assert_parity(wrong, reference)


def test_every_parameter_of_the_model_has_a_gradient():
    found = single(4, 8, 1, True)["gradients"]
    assert len(found) == 2 + 4 * 12 + 2
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
