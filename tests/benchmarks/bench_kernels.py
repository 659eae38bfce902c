"""Operators, forward and backward, by implementation."""

from importlib import import_module

import pytest
import torch

from suite.kernels.registry import OPERATORS

NEED_A_DEVICE = ("triton", "apex")
ROWS, BATCH, WIDTH, HEADS = 128, 2, 256, 4


def inputs(operator):
    draw = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=draw).requires_grad_()

    if operator == "layer_norm":
        return [random(ROWS, BATCH, WIDTH), random(WIDTH), random(WIDTH)], (1e-5,)
    if operator == "bias_gelu":
        return [random(ROWS, BATCH, WIDTH), random(WIDTH)], ()
    return [random(BATCH, HEADS, ROWS, WIDTH // HEADS) for _ in range(3)], (None,)


CASES = [
    (operator, name)
    for operator in ("layer_norm", "bias_gelu", "attention")
    for name in OPERATORS[operator]
    if name not in NEED_A_DEVICE
]


@pytest.mark.parametrize(("operator", "name"), CASES)
def test_forward_and_backward(benchmark, operator, name):
    function = getattr(import_module(f"suite.kernels.{operator}"), name)
    leaves, constants = inputs(operator)
    weights = torch.ones_like(function(*leaves, *constants))
    benchmark.pedantic(
        lambda: torch.autograd.grad(function(*leaves, *constants), leaves, weights),
        rounds=30,
        iterations=10,
        warmup_rounds=3,
    )
