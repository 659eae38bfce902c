"""Mixed precision: gradients near fp32's, fp32 main gradients and master weights, the loss scale."""

import math

import pytest
import torch
from layouts import gradients, point, training_step
from ranks import run_ranks

from suite.training.precision import INITIAL_SCALE, LossScale

LAYOUTS = [(1, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)]


@pytest.fixture(scope="module")
def exact():
    return gradients(point(training={"precision": "fp32"}))


@pytest.mark.processes
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("precision", "roundoff"), [("bf16", 2.0**-8), ("fp16", 2.0**-11)])
def test_gradients_are_fp32_gradients_to_the_rounding_of_the_format(exact, layout, precision, roundoff):
    """Each of the about 60 rounded operations between loss and weight errs by at most the unit roundoff u, relatively
    and independently, so that a gradient errs by about sqrt(60) u = 8 u of its own size; held to 8 u of the whole norm.
    """
    rounded = gradients(point(layout, training={"precision": precision}))
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=8 * roundoff)
    assert rounded["norm"] == pytest.approx(exact["norm"], rel=8 * roundoff)
    for name, gradient in rounded["gradients"].items():
        assert gradient.dtype == torch.float32
        error = torch.linalg.vector_norm(gradient - exact["gradients"][name]).item()
        assert error <= 8 * roundoff * exact["norm"], name


@pytest.mark.processes
@pytest.mark.parametrize(("precision", "roundoff"), [("bf16", 2.0**-8), ("fp16", 2.0**-11)])
def test_fully_sharded_computes_in_16_bits_and_keeps_fp32(exact, precision, roundoff):
    rounded = gradients(point((1, 1, 2), parallel={"data": 2, "sharding": "zero3"}, training={"precision": precision}))
    assert rounded["norm"] == pytest.approx(exact["norm"], rel=8 * roundoff)
    assert rounded["norm"] != pytest.approx(exact["norm"], rel=1e-6)
    for name, gradient in rounded["gradients"].items():
        assert gradient.dtype == torch.float32
        error = torch.linalg.vector_norm(gradient - exact["gradients"][name]).item()
        assert error <= 8 * roundoff * exact["norm"], name


def losses_of(at, steps):
    step = training_step(at)
    return [step.run(k).loss for k in range(steps)], step.loss_scale.skipped


@pytest.mark.processes
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sharding_the_master_weights_changes_no_loss(precision):
    training = {"precision": precision, "optimizer": "adamw", "learning_rate": 1e-3, "gradient_clip": 1.0}
    plain = run_ranks(2, losses_of, point((1, 1, 2), training=training), 6)
    shared = run_ranks(2, losses_of, point((1, 1, 2), parallel={"data": 2, "sharding": "zero1"}, training=training), 6)
    assert plain == shared


def test_master_weights_take_updates_that_16_bits_would_lose():
    step = training_step(point(training={"precision": "bf16", "learning_rate": 1e-5}))
    before = [piece.master.clone() for piece in step.optimizer.pieces]
    step.run(0)
    moved = [(piece.master != old).any() for piece, old in zip(step.optimizer.pieces, before, strict=True)]
    assert all(moved)


def test_an_overflow_skips_the_step_and_halves_the_scale():
    at = point(training={"precision": "fp16", "loss_scale": 1e9})
    step = training_step(at)
    before = [piece.master.clone() for piece in step.optimizer.pieces]
    samples = step.run(0)
    assert not math.isfinite(samples.grad_norm)
    assert step.loss_scale.skipped == 1
    assert step.loss_scale.value == 1e9  # a fixed scale stays
    assert all(torch.equal(piece.master, old) for piece, old in zip(step.optimizer.pieces, before, strict=True))


def test_dynamic_scale_halves_on_overflow_and_doubles_after_enough_good_steps(monkeypatch):
    monkeypatch.setattr("suite.training.precision.GROWTH_INTERVAL", 3)
    scale = LossScale("fp16", "dynamic")
    assert not scale.accepts(float("inf"))
    assert scale.value == INITIAL_SCALE / 2
    assert [scale.accepts(1.0) for _ in range(3)] == [True] * 3
    assert scale.value == INITIAL_SCALE


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_only_fp16_has_a_scale(precision):
    scale = LossScale(precision, 8192.0)
    assert scale.value == 1.0
    assert scale.accepts(float("inf"))
