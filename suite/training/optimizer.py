"""The global gradient norm, clipping, and the update, on flat buffers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from suite.experiment.point import Training
from suite.kernels.adamw import Hyperparameters
from suite.parallel.flat_buffer import Buffer
from suite.parallel.parameters import Described
from suite.parallel.topology import Topology

ADAM_BETAS = (0.9, 0.999)  # the defaults of the paper's scripts
ADAM_EPS = 1e-8
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Piece:
    """What one update works on: flat views of values and gradients, the weights to update, and their moments.

    `master` are fp32 weights of their own where the values have 16 bits, and the values themselves otherwise.
    """

    values: torch.Tensor
    gradients: torch.Tensor
    master: torch.Tensor
    moments: tuple[torch.Tensor, ...]
    decay: bool


class Optimizer:
    """AdamW (decoupled decay, none on biases and norms) or plain gradient descent, on the pieces this rank owns."""

    def __init__(self, training: Training, buffers: Sequence[Buffer], adamw: Callable[..., None]) -> None:
        """`adamw` is the chosen kernel."""
        self.training, self.adamw = training, adamw
        self.steps = 0
        moments = 2 if training.optimizer == "adamw" else 0
        self.by_buffer = [(flat, [_piece(flat, place, moments) for place in flat.owned]) for flat in buffers]

    @property
    def pieces(self) -> list[Piece]:
        """Every piece that this rank updates."""
        return [piece for _, pieces in self.by_buffer for piece in pieces]

    @property
    def state(self) -> list[torch.Tensor]:
        """What the optimizer keeps between steps beside the values: moments, and master weights of their own."""
        masters = [piece.master for piece in self.pieces if piece.master is not piece.values]
        return [*masters, *(moment for piece in self.pieces for moment in piece.moments)]

    def step(self) -> None:
        """One update."""
        self.steps += 1
        rate = self.training.learning_rate
        for piece in self.pieces:
            if self.training.optimizer == "sgd":
                piece.master.add_(piece.gradients, alpha=-rate)
            else:
                decay = WEIGHT_DECAY if piece.decay else 0.0
                constants = Hyperparameters(rate, ADAM_BETAS, ADAM_EPS, decay)
                self.adamw(piece.master, piece.gradients, *piece.moments, self.steps, constants)
            if piece.master is not piece.values:
                piece.values.copy_(piece.master)


def _piece(flat: Buffer, place: slice, moments: int) -> Piece:
    values, gradients = flat.values[place], flat.gradients[place]
    master = values if values.dtype == flat.dtype else values.to(flat.dtype)
    return Piece(values, gradients, master, tuple(torch.zeros_like(master) for _ in range(moments)), flat.decay)


def counted_norm_squared(
    buffers: Sequence[Buffer], topology: Topology, sum_of_squares: Callable[[Sequence[torch.Tensor]], torch.Tensor]
) -> torch.Tensor:
    """This rank's part of the squared global gradient norm, fp64, so that all ranks' parts sum to it.

    `sum_of_squares` is the chosen kernel.

    Every parameter counts once: its holders have the same reduced gradients (the first counts; with a sharded
    optimizer each counts its own pieces), tensor ranks hold the same gradient of what is not sharded (the first
    counts), and a tied embedding's second copy never counts.
    """

    def counts(parameter: Described) -> bool:
        return (parameter.spec.shard is not None or topology.tensor.index == 0) and not parameter.shared

    ours = [flat for flat in buffers if flat.sharded or flat.group.index == 0]
    counted = [view for flat in ours for view in flat.owned_gradients(counts)]
    if not counted:
        return torch.zeros((), dtype=torch.float64, device=buffers[0].values.device)
    return sum_of_squares(counted)


def scale_gradients(
    buffers: Sequence[Buffer], factor: float, unscale: Callable[[Sequence[torch.Tensor], float], None]
) -> None:
    """Multiply the gradients that this rank owns, by the chosen kernel."""
    if factor != 1.0:
        unscale([flat.gradients[place] for flat in buffers for place in flat.owned], factor)


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this global norm are multiplied by so that it is at most `limit`; a limit of 0 is none."""
    return limit / (norm + 1e-6) if limit and norm > limit else 1.0
