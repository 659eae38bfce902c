"""Every operator's implementations against its reference, forward and backward, and the choice among them."""

from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.kernels.adamw import Hyperparameters
from suite.kernels.registry import OPERATORS, choose, select

NEED_A_DEVICE = ("triton", "apex")
SIZE = st.integers(1, 9)


def implementations(operator):
    module = import_module(f"suite.kernels.{operator}")
    return [getattr(module, name) for name in OPERATORS[operator] if name not in ("reference", *NEED_A_DEVICE)]


def reference(operator):
    return import_module(f"suite.kernels.{operator}").reference


def assert_same(operator, inputs, *constants):
    """Outputs and the gradients of all inputs are those of the reference."""
    leaves = [x.requires_grad_() for x in inputs]
    expected = reference(operator)(*leaves, *constants)
    weights = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, leaves, weights)
    for function in implementations(operator):
        found = function(*leaves, *constants)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(torch.autograd.grad(found, leaves, weights), expected_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(rows=SIZE, batch=SIZE, width=st.integers(2, 33), scale=st.floats(0.01, 100))
def test_layer_norm_is_its_reference(rows, batch, width, scale):
    assert_same("layer_norm", [random(rows, batch, width) * scale, random(width), random(width)], 1e-5)


def test_layer_norm_reference_has_mean_and_variance_of_the_biased_kind():
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    y = reference("layer_norm")(x, torch.full((4,), 2.0), torch.full((4,), 5.0), 0.0)
    torch.testing.assert_close(y, 5 + 2 * (x - 3) / 3.5**0.5)


@settings(max_examples=30, deadline=None)
@given(rows=SIZE, batch=SIZE, width=st.integers(1, 33), scale=st.floats(0.01, 20))
def test_bias_gelu_is_its_reference(rows, batch, width, scale):
    assert_same("bias_gelu", [random(rows, batch, width) * scale, random(width)])


def test_bias_gelu_reference_is_close_to_the_exact_gelu():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    y = reference("bias_gelu")(x - 0.25, torch.full((101,), 0.25, dtype=torch.float64))
    torch.testing.assert_close(y, torch.nn.functional.gelu(x), rtol=0, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 3), heads=st.integers(1, 5), s=st.integers(1, 17), d=SIZE, masked=st.booleans())
def test_attention_is_its_reference(batch, heads, s, d, masked):
    mask = (torch.rand(batch, heads, s, s) < 0.7).double()
    drop = (lambda probabilities: probabilities * mask) if masked else None
    assert_same("attention", [random(batch, heads, s, d) for _ in range(3)], drop)


def test_attention_reference_looks_only_back():
    q, k, v = (random(1, 2, 6, 4) for _ in range(3))
    before = reference("attention")(q, k, v, None)
    k[..., 4:, :] += 1.0
    v[..., 4:, :] += 1.0
    after = reference("attention")(q, k, v, None)
    assert torch.equal(before[..., :4, :], after[..., :4, :])
    assert not torch.equal(before[..., 4:, :], after[..., 4:, :])
    torch.testing.assert_close(after[..., 0, :], v[..., 0, :])


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 300),
    rate=st.floats(1e-5, 0.5),
    decay=st.floats(0, 0.5),
    beta1=st.floats(0, 0.99),
    beta2=st.floats(0.5, 0.9999),
)
def test_adamw_is_its_reference_over_several_steps(size, rate, decay, beta1, beta2):
    constants = Hyperparameters(rate, (beta1, beta2), 1e-8, decay)
    start, gradients = random(size), [random(size) for _ in range(4)]

    def updated(function):
        tensors = [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]
        for step, gradient in enumerate(gradients, 1):
            values, *moments = tensors
            function(values, gradient.clone(), *moments, step, constants)
        return tensors

    expected = updated(reference("adamw"))
    for function in implementations("adamw"):
        for mine, theirs in zip(updated(function), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_auto_takes_the_first_implementation_and_the_names_are_kept_for_the_record():
    first = {operator: names[0] for operator, names in OPERATORS.items()}
    assert choose("auto") == choose({}) == first
    chosen = select("reference")
    assert chosen.names == dict.fromkeys(OPERATORS, "reference")
    assert chosen.attention is reference("attention")
    assert chosen.adamw is reference("adamw")


def test_operators_can_be_chosen_one_by_one():
    names = choose({"attention": "reference", "adamw": "auto"})
    assert names == {**choose("auto"), "attention": "reference"}
    assert select({"attention": "reference"}).names == names


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"softmax": "torch"}, "there is no operator 'softmax'; there are layer_norm, bias_gelu, attention, adamw"),
        ({"attention": "cuda"}, "attention has no 'cuda' implementation; it has .*reference"),
        ("cuda", "layer_norm has no 'cuda' implementation"),
    ],
)
def test_a_choice_that_does_not_exist_is_an_error_that_says_what_does(choice, reason):
    with pytest.raises(ValueError, match=reason):
        select(choice)
