"""The global gradient norm, clipping, and the update, on flat buffers."""

from collections.abc import Callable
from typing import Protocol

import torch

from suite.experiment.point import Training
from suite.kernels.adamw import Hyperparameters
from suite.parallel.flat_buffer import FlatBuffer
from suite.parallel.topology import Topology

ADAM_BETAS = (0.9, 0.999)  # the defaults of the paper's scripts
ADAM_EPS = 1e-8
WEIGHT_DECAY = 0.01


class Optimizer(Protocol):
    """Updates flat buffers in place from their gradients."""

    state: list[torch.Tensor]

    def step(self) -> None:
        """One update."""


class AdamW:
    """AdamW with decoupled decay, none on biases and norms."""

    def __init__(self, learning_rate: float, buffers: list[FlatBuffer], kernel: Callable[..., None]) -> None:
        self.kernel = kernel
        self.steps = 0
        self.buffers = [
            (
                flat,
                torch.zeros_like(flat.values),
                torch.zeros_like(flat.values),
                Hyperparameters(learning_rate, ADAM_BETAS, ADAM_EPS, WEIGHT_DECAY if flat.decay else 0.0),
            )
            for flat in buffers
        ]
        self.state = [moment for _, first, second, _ in self.buffers for moment in (first, second)]

    def step(self) -> None:
        """One update."""
        self.steps += 1
        for flat, first, second, hyperparameters in self.buffers:
            self.kernel(flat.values, flat.gradients, first, second, self.steps, hyperparameters)


class SGD:
    """Plain gradient descent."""

    def __init__(self, learning_rate: float, buffers: list[FlatBuffer]) -> None:
        self.learning_rate, self.buffers = learning_rate, buffers
        self.state: list[torch.Tensor] = []

    def step(self) -> None:
        """One update."""
        for flat in self.buffers:
            flat.values.add_(flat.gradients, alpha=-self.learning_rate)


def build_optimizer(training: Training, buffers: list[FlatBuffer], adamw: Callable[..., None]) -> Optimizer:
    """The optimizer that the point names; `adamw` is the chosen kernel."""
    if training.optimizer == "sgd":
        return SGD(training.learning_rate, buffers)
    return AdamW(training.learning_rate, buffers, adamw)


def counted_norm_squared(buffers: list[FlatBuffer], topology: Topology) -> torch.Tensor:
    """This rank's part of the squared global gradient norm, fp64, so that all ranks' parts sum to it.

    Every parameter counts once: data ranks hold the same reduced gradients (the first counts), tensor ranks hold
    the same gradient of what is not sharded (the first counts), and a tied embedding's second copy never counts.
    """
    counted = [
        parameter.grad
        for flat in buffers
        for parameter in flat.parameters
        if not parameter.shared
        and topology.data.index == 0
        and (parameter.spec.shard is not None or topology.tensor.index == 0)
        and parameter.grad is not None
    ]
    device = buffers[0].values.device
    if not counted:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(torch._foreach_norm(counted)).double().square().sum()


def clip(buffers: list[FlatBuffer], norm: float, limit: float) -> None:
    """Scale all gradients so that their global norm is at most `limit`; 0 means no clipping."""
    if limit and norm > limit:
        for flat in buffers:
            flat.gradients.mul_(limit / (norm + 1e-6))
