"""Predicting whether a point fits: bytes of every pipeline rank, by what they hold.

Training state follows from the number of parameters, activations from the program: the largest sum over what is alive
at once. What is needed only for a moment is added where it is needed.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from suite.experiment.hardware import Hardware
from suite.experiment.pace import BYTES
from suite.experiment.point import Point
from suite.measure.flops import padded_vocab
from suite.model.activations import core_bytes, deferred_bytes, half_bytes, sequence_shares, stage_bytes
from suite.model.sizes import half_parameters, rank_parameters
from suite.model.split import layer_split, layers_of
from suite.pipeline.graph import BW, KINDS, B, F, W
from suite.pipeline.program import Schedule

MARGIN = 0.10  # of the capacity, within which there is no verdict
# What torch's caching allocator holds beyond what is alive: blocks are rounded up and split, and what lies between two
# that live long fits nothing else. Programs that were not tuned for it lose 5 to 10 %.
ALLOCATOR = 0.10

Verdict = Literal["fits", "does not fit", "undecided"]


@dataclass(frozen=True)
class Footprint:
    """Predicted bytes of the fullest pipeline rank, by what they hold, against what the device has.

    `live` is what its tensors hold at the moment of the peak; libraries and the allocator come on top of that.
    """

    rank: int
    live: dict[str, float]
    reserved: float
    capacity: float

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they hold."""
        return self.live | {"allocator": ALLOCATOR * sum(self.live.values()), "reserved": self.reserved}

    @property
    def predicted(self) -> float:
        """All of it, in bytes."""
        return sum(self.parts.values())

    @property
    def verdict(self) -> Verdict:
        """Whether it fits, as far as that can be said."""
        if abs(self.predicted / self.capacity - 1) <= MARGIN:
            return "undecided"
        return "fits" if self.predicted < self.capacity else "does not fit"

    def as_json(self) -> dict[str, Any]:
        """The form that records and plans have."""
        return {
            "predicted_bytes": round(self.predicted),
            "capacity_bytes": round(self.capacity),
            "verdict": self.verdict,
            "margin": MARGIN,
            "rank": self.rank,
            "parts": {name: round(size) for name, size in self.parts.items()},
        }


def footprint(point: Point, hardware: Hardware, schedule: Schedule) -> Footprint:
    """The memory of a valid point's fullest pipeline rank under its schedule."""
    copies = point.parallel.data * schedule.replicas
    parameters = rank_parameters(point)
    states = [_states(point, hardware, count, copies) for count in parameters]
    updates = [_update(point, hardware, count, copies) for count in parameters]
    activations = _activations(point, hardware, schedule)
    moments = [max(update, sum(alive)) for update, alive in zip(updates, activations, strict=True)]
    rank = max(range(len(states)), key=lambda r: sum(states[r].values()) + moments[r])
    kept, _ = activations[rank]
    live = states[rank] | {"activations": kept, "temporary": moments[rank] - kept}
    return Footprint(rank, live, hardware.device.reserved_bytes, hardware.device.memory_bytes)


def _states(point: Point, hardware: Hardware, parameters: int, copies: int) -> dict[str, float]:
    """Weights, gradients and optimizer state of a rank; `copies` are the ranks that hold the same stages."""
    element, sharding = BYTES[point.training.precision], point.parallel.sharding
    main = max(4, element)
    gradient = hardware.software.gradient_bytes if element == 2 else element
    optimizer = (2 * main if point.training.optimizer == "adamw" else 0) + (main if element == 2 else 0)
    everything = copies if sharding == "zero3" else 1
    return {
        "weights": parameters * element / everything,
        "gradients": parameters * gradient / everything,
        "optimizer": parameters * optimizer / (copies if sharding != "none" else 1),
    }


def _update(point: Point, hardware: Hardware, parameters: int, copies: int) -> float:
    """What the update needs for a moment: 16-bit gradients once more in 32 bits."""
    if BYTES[point.training.precision] != 2 or hardware.software.gradient_bytes >= 4:
        return 0.0
    return 4 * parameters / (copies if point.parallel.sharding != "none" else 1)


def _activations(point: Point, hardware: Hardware, schedule: Schedule) -> list[tuple[float, float]]:
    """By rank, at its fullest moment: bytes of the activations alive, and of what is there for that moment only.

    A forward pass adds what its stage keeps and a backward pass takes it away; one in two parts leaves what W needs.
    """
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    stages = [
        _Stage(point, hardware, halves, number == 0, number == len(split) - 1) for number, halves in enumerate(split)
    ]
    kept, deferred, ahead, behind = (
        np.array(column) for column in zip(*((s.kept, s.deferred, s.ahead, s.behind) for s in stages), strict=True)
    )
    changes, moments = np.zeros((2, len(KINDS), len(stages)))
    changes[F], changes[BW], changes[B], changes[W] = kept, -kept, deferred - kept, -deferred
    moments[F], moments[BW], moments[B], moments[W] = ahead, behind, behind, 0
    graph = schedule.graph
    change = changes[graph.kinds, graph.stages]
    after = np.cumsum(change)  # of all ranks in turn: each ends with nothing
    alive = np.maximum(after, after - change)
    passing = moments[graph.kinds, graph.stages]
    found = []
    for start, end in pairwise(graph.first):
        fullest = start + int(np.argmax(alive[start:end] + passing[start:end]))
        found.append((float(alive[fullest]), float(passing[fullest])))
    return found


def _fused_core(point: Point, hardware: Hardware) -> bool:
    """Whether the attention core keeps nothing of size s^2."""
    software, kernels = hardware.software, point.kernels
    chosen = kernels if isinstance(kernels, str) else kernels.get("attention")
    able = software.flash_attention and (software.flash_dropout or not point.model.dropout)
    return able and chosen != "reference"


class _Stage:
    """Bytes of one microbatch in one virtual stage.

    `kept` until its backward pass, `deferred` from B to W; `ahead` and `behind` are needed only while a forward and a
    backward pass run: messages, what ZeRO-3 has gathered, logits and their gradient, the layers that are recomputed
    together, gradients of hidden states and of the largest weight. What the attention core's products pass on to each
    other is left out.
    """

    def __init__(self, point: Point, hardware: Hardware, halves: range, first: bool, last: bool) -> None:
        model, training, tensor = point.model, point.training, point.parallel.tensor
        fused = _fused_core(point, hardware)
        element = BYTES[training.precision]
        wide = max(4, element)
        rows = model.seq_length * training.microbatch
        hidden = rows * model.hidden_size * element // sequence_shares(point)
        vocabulary = padded_vocab(model.vocab_size, tensor) // tensor
        logits, word = rows * vocabulary, vocabulary * model.hidden_size * element
        self.kept = stage_bytes(point, halves, first, last, fused)
        if hardware.software.keeps_outputs and not last:
            self.kept += hidden
        self.deferred = deferred_bytes(point, halves, first, last)

        always = 2 * hidden if point.parallel.pipeline > 1 else 0  # a message on its way in, one on its way out
        if point.parallel.sharding == "zero3":
            always += element * sum(half_parameters(model, tensor)) + word
        again = {
            "none": 0,
            "selective": core_bytes(point, fused),
            "full": sum(half_bytes(point, fused)) * min(len(layers_of(halves)), training.recompute_layers) - hidden,
        }[training.recompute]
        inner = rows * model.ffn_hidden_size * element // tensor
        accumulated, added = hardware.software.fused_accumulation, hardware.software.added_rows
        weight = 0 if accumulated else model.ffn_hidden_size * model.hidden_size * element // tensor
        gone = 2 * hidden + wide * logits if last else 0  # what the head had kept, when it is the layers' turn
        in_layers = again + 2 * hidden + inner + weight - gone
        in_head = (
            element * logits + max(wide * logits if element == 2 else 0, (0 if accumulated else word) - wide * logits)
            if last
            else 0
        )
        in_embedding = (0 if added else word) + hidden - self.kept if first else 0
        self.ahead = always + (element * logits if last else 0)
        self.behind = always + max(in_layers, in_head, in_embedding)
