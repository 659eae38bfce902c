"""Training: optimizer and clipping against torch's, many steps against one process, reduction, order, and sizes."""

import hashlib
from collections import Counter

import pytest
import torch
from layouts import gradients, gradients_here, point, training_step
from ranks import run_ranks

from suite.kernels.registry import select
from suite.model.gpt import Build, build_stages
from suite.model.sizes import rank_parameters
from suite.parallel import flat_buffer
from suite.parallel.data_parallel import GradientReducer
from suite.parallel.flat_buffer import FlatBuffer, flatten
from suite.parallel.parameters import ParameterSpec, create_parameter
from suite.parallel.tensor_parallel import TensorRanks
from suite.parallel.topology import ALONE, Group, Topology
from suite.pipeline.generators import generate
from suite.training.optimizer import (
    ADAM_BETAS,
    ADAM_EPS,
    WEIGHT_DECAY,
    Optimizer,
    clip_factor,
    counted_norm_squared,
    scale_gradients,
)
from suite.training.step import TrainingStep

INTERLEAVED = {"name": "interleaved", "chunks": 2}


def parameters(*shapes, decay=True):
    """fp64 parameters of these shapes."""
    specs = [ParameterSpec(f"{'x'.join(map(str, s))}.{decay}", s, std=0.5, decay=decay) for s in shapes]
    return [create_parameter(spec, ALONE, 1, torch.float64) for spec in specs]


def buffers_and_copies():
    """Flat buffers of parameters with and without decay, and plain copies of the parameters with torch's groups."""
    weights, biases = parameters((5, 7), (3,), (2, 2, 2)), parameters((7,), (1,), decay=False)
    copies = {p: torch.nn.Parameter(p.detach().clone()) for p in (*weights, *biases)}
    groups = [
        {"params": [copies[p] for p in weights], "weight_decay": WEIGHT_DECAY},
        {"params": [copies[p] for p in biases], "weight_decay": 0.0},
    ]
    return flatten([*weights, *biases]), copies, groups


def give_gradients(copies, generator):
    for parameter, copy in copies.items():
        copy.grad = torch.randn(copy.shape, generator=generator, dtype=copy.dtype)
        parameter.main_grad.copy_(copy.grad)


@pytest.mark.parametrize("kernel", ["torch", "reference"])
def test_adamw_is_torchs_adamw(kernel):
    flats, copies, groups = buffers_and_copies()
    training = point(training={"optimizer": "adamw", "learning_rate": 0.01}).training
    ours = Optimizer(training, flats, select({"adamw": kernel}).adamw)
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=ADAM_BETAS, eps=ADAM_EPS)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        give_gradients(copies, generator)
        ours.step()
        theirs.step()
        for parameter, copy in copies.items():
            torch.testing.assert_close(parameter.detach(), copy.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["torch", "reference"])
@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_clipping_is_torchs_clipping(limit, kernel):
    flats, copies, _ = buffers_and_copies()
    give_gradients(copies, torch.Generator().manual_seed(2))
    kernels = select(kernel)
    norm = counted_norm_squared(flats, Topology(rank=0), kernels.gradient_norm).item() ** 0.5
    scale_gradients(flats, clip_factor(norm, limit), kernels.unscale)
    theirs = torch.nn.utils.clip_grad_norm_(list(copies.values()), limit)
    assert norm == pytest.approx(theirs.item(), rel=1e-12)
    for parameter, copy in copies.items():
        torch.testing.assert_close(parameter.main_grad, copy.grad, rtol=1e-12, atol=1e-14)


def test_a_limit_of_zero_is_no_clipping():
    assert clip_factor(1e9, 0) == 1.0


def trained(at, steps):
    """Losses, norms, and a hash of every parameter's values after some steps."""
    step = training_step(at)
    samples = [step.run(k) for k in range(steps)]
    hashes = {p.spec.name: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for p in step.parameters()}
    return {
        "coords": step.topology.coords,
        "losses": [sample.loss for sample in samples],
        "norms": [sample.grad_norm for sample in samples],
        "hashes": hashes,
    }


@pytest.mark.processes
@pytest.mark.parametrize(
    ("steps", "parallel"),
    [
        (20, {"tensor": 2, "pipeline": 2, "data": 2}),
        (10, {"pipeline": 2, "data": 2, "sharding": "zero1"}),
    ],
    ids=["three dimensions", "sharded optimizer"],
)
def test_steps_with_clipping_and_dropout_have_the_single_process_losses(steps, parallel):
    training = {"precision": "fp32", "optimizer": "adamw", "learning_rate": 1e-3, "gradient_clip": 1.0}
    at = point(schedule=INTERLEAVED, parallel=parallel, training=training)
    ranks = run_ranks(at.parallel.ranks, trained, at, steps)
    alone = trained(point(training=training), steps)
    assert max(alone["norms"]) > 1.0, "nothing was clipped"
    for rank in ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert rank["norms"] == pytest.approx(alone["norms"], rel=1e-4)
        assert rank["losses"] == ranks[0]["losses"]
    copies = {}
    for rank in ranks:
        if "embedding.word.weight" in rank["hashes"]:
            copies.setdefault(rank["coords"]["tensor"], []).append(rank["hashes"]["embedding.word.weight"])
    assert {len(hashes) for hashes in copies.values()} == {4}, "two copies on each of two data ranks"
    assert {len(set(hashes)) for hashes in copies.values()} == {1}, "the copies have drifted apart"


@pytest.mark.processes
def test_both_copies_of_a_tied_embedding_are_bitwise_equal_after_100_steps():
    training = {"precision": "fp32", "optimizer": "adamw", "learning_rate": 1e-2, "gradient_clip": 1.0}
    at = point((1, 2, 1), batch=2, model={"layers": 2}, training=training)
    first, last = run_ranks(2, trained, at, 100)
    assert first["hashes"]["embedding.word.weight"] == last["hashes"]["embedding.word.weight"]
    assert first["losses"] == last["losses"]


def reductions_begun(at):
    """For each reduction of a gradient bucket, how many actions had ended when it began; and all actions."""
    step = training_step(at)
    begun = []
    start = Group.all_reduce_async

    def watched(group, tensor):
        begun.append(len(step.engine.executed))
        return start(group, tensor)

    Group.all_reduce_async = watched
    step.gradients(0)
    return begun, len(step.engine.executed)


@pytest.mark.processes
def test_gradients_are_reduced_while_the_backward_pass_still_runs(monkeypatch):
    monkeypatch.setattr(flat_buffer, "BUCKET_BYTES", 4096)
    at = point((1, 1, 2), INTERLEAVED, model={"tied_embeddings": False})
    for begun, actions in run_ranks(2, reductions_begun, at):
        assert actions == 2 * 2 * 4
        assert len(begun) > 10
        assert all(ended < actions for ended in begun), "a reduction began after the backward pass"
        assert sum(ended < actions - 1 for ended in begun) > 5, "only the last backward's gradients are overlapped"
        assert min(begun) >= actions - 4, "a bucket was reduced before its last gradient was there"


def two_parameters():
    """A reducer of two data ranks, armed, over two parameters in one bucket."""
    used, unused = parameters((2,), (3,))
    buffer = FlatBuffer([used, unused], Group(size=2, index=0))
    reducer = GradientReducer({(0, 0): [buffer]})
    return used, unused, reducer


def test_a_parameter_without_a_gradient_is_an_error():
    used, unused, reducer = two_parameters()
    reducer.final_backward((0, 0))
    used.sum().backward()
    with pytest.raises(RuntimeError, match=f"no gradient came for {unused.spec.name}"):
        reducer.finish()


def test_a_stage_without_a_final_backward_is_an_error():
    used, unused, reducer = two_parameters()
    (used.sum() + unused.sum()).backward()
    with pytest.raises(RuntimeError, match="had no final backward"):
        reducer.finish()


def initial_shards(at):
    step = training_step(at)
    return step.topology.coords["tensor"], [(p.spec, p.detach().numpy()) for p in step.parameters()]


def initial_hashes(at):
    """A hash of every whole parameter before training, put together from the tensor ranks' shards."""
    shards = {}
    for tensor, listed in run_ranks(at.parallel.ranks, initial_shards, at):
        for spec, values in listed:
            shards.setdefault(spec.name, (spec, {}))[1][tensor] = torch.from_numpy(values)
    hashes = {}
    for name, (spec, parts) in shards.items():
        ordered = [parts[index] for index in sorted(parts)]
        whole = ordered[0] if spec.shard is None else torch.cat(ordered, dim=spec.shard)
        hashes[name] = hashlib.sha256(whole[: spec.shape[0]].contiguous().numpy().tobytes()).hexdigest()
    return hashes


@pytest.mark.processes
def test_every_layout_starts_from_the_same_weights():
    single = initial_hashes(point())
    assert len(single) == 2 + 4 * 12 + 2
    for layout, schedule in (((4, 1, 1), "1f1b"), ((2, 2, 1), INTERLEAVED), ((1, 2, 2), "1f1b")):
        assert initial_hashes(point(layout, schedule)) == single
    other = initial_hashes(point(training={"seed": 5}))
    weights = [name for name in single if name.endswith("weight") and "norm" not in name]
    assert all(other[name] != single[name] for name in weights)
    assert Counter(single[name] for name in weights).most_common(1)[0][1] == 1, "two weights start equal"


@pytest.mark.processes
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", INTERLEAVED])
def test_actions_run_in_the_order_of_the_program(schedule):
    at = point((1, 4, 1), schedule, model={"layers": 8})
    programs = generate(at.schedule, 4, at.microbatches).programs
    for rank in gradients(at)["ranks"]:
        assert tuple(rank["executed"]) == programs[rank["coords"]["pipeline"]]


def test_accumulating_microbatches_is_one_large_batch():
    whole = gradients_here(point(batch=8, microbatch=8))
    for microbatch in (1, 2, 4):
        parts = gradients_here(point(batch=8, microbatch=microbatch))
        assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-12)
        for (spec, _, mine), (_, _, theirs) in zip(parts["gradients"], whole["gradients"], strict=True):
            torch.testing.assert_close(
                torch.from_numpy(mine), torch.from_numpy(theirs), rtol=1e-10, atol=1e-12, msg=spec.name
            )


SIZES = [
    ((1, 1, 1), "1f1b", {}),
    ((2, 1, 1), "1f1b", {"ffn_hidden_size": 40}),
    ((1, 2, 1), "gpipe", {"layers": 5, "vocab_size": 300}),
    ((2, 4, 1), "1f1b", {"layers": 7}),
    ((1, 1, 1), INTERLEAVED, {}),
    ((1, 1, 1), INTERLEAVED, {"tied_embeddings": False}),
    ((4, 2, 1), {"name": "interleaved", "chunks": 3}, {"layers": 11}),
    ((2, 2, 1), INTERLEAVED, {"tied_embeddings": False}),
    ((1, 2, 1), {"name": "1f1b", "split": [1, 3]}, {}),
    ((2, 2, 1), {"name": "1f1b", "split": [1.5, 2.5]}, {}),
    ((1, 4, 1), "zb-v", {"layers": 9}),
    ((2, 2, 1), {"name": "hanayo", "chunks": 4}, {"layers": 9, "tied_embeddings": False}),
    ((1, 4, 1), "chimera", {"layers": 5}),
    ((2, 4, 1), "dualpipe", {"tied_embeddings": False}),
]


@pytest.mark.parametrize(("layout", "schedule", "model"), SIZES)
def test_predicted_parameters_are_those_that_every_rank_holds(layout, schedule, model):
    at = point(layout, schedule, model=model)
    schedule = generate(at.schedule, at.parallel.pipeline, at.microbatches)
    for tensor in range(at.parallel.tensor):
        held = []
        for rank in range(at.parallel.pipeline):
            ranks = TensorRanks(Group(at.parallel.tensor, tensor))
            build = Build(at.model, ranks, at.training, torch.float32, select("auto"))
            stages = build_stages(at, schedule.hosted(rank), build, torch.device("cpu"))
            held.append(sum(p.numel() for p in {p for stage in stages.values() for p in stage.parameters()}))
        assert held == rank_parameters(at)


def test_a_step_holds_what_is_predicted():
    step = training_step(point(training={"optimizer": "adamw"}))
    assert isinstance(step, TrainingStep)
    (expected,) = rank_parameters(step.point)
    assert sum(tensor.numel() for tensor in step.live_tensors()) == 4 * expected
