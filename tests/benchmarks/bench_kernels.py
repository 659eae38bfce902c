"""Operators, forward and backward, by every implementation that needs no device."""

import pytest
import torch

from suite.kernels.cases import Sizes, cases
from suite.kernels.registry import OPERATORS, implementation

SIZES = Sizes(s=128, b=2, h=256, heads=4, vocabulary=1024)
CASES = {case.operator: case for case in cases(SIZES, torch.float32, torch.device("cpu"))}
RUNS = [(operator, name) for operator in CASES for name in OPERATORS[operator] if name not in ("triton", "apex")]


@pytest.mark.parametrize(("operator", "name"), RUNS)
def test_forward_and_backward(benchmark, operator, name):
    case, function = CASES[operator], implementation(operator, name)
    benchmark.pedantic(lambda: case.back(case.run(function)), rounds=20, iterations=5, warmup_rounds=2)
