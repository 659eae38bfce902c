"""What each effect that the simulator models is worth: the error on rows that nothing was fitted on, without it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import mean

from suite.experiment.hardware import Tile
from suite.records.published import PublishedRow
from suite.report.score import Case, cases, error_of
from suite.simulate.iteration import Estimate, estimate
from suite.simulate.operators import Operators, Passes
from suite.simulate.rows import Placed

_NUMBERED = re.compile(r"(Figure|Table) \d+")
_MUCH = 1e18  # bytes/s of a link that costs nothing


class _NoHead(Operators):
    def head(self) -> Passes:
        return Passes()


class _NoAccumulation(Operators):
    def linear(self, inputs: int, outputs: int) -> Passes:
        passes = super().linear(inputs, outputs)
        return replace(passes, weight_gradient=replace(passes.weight_gradient, elementwise=0.0))


class _AlwaysFusedSoftmax(Operators):
    fused_softmax_heads = 1


class _NoElementwise(Operators):
    def _elementwise(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True)
class Ablation:
    """An effect, and the model without it: another configuration, other operators, or parts of the time left out."""

    effect: str
    without: Callable[[Placed], Placed] = lambda placed: placed
    operators: type[Operators] = Operators
    left_out: tuple[str, ...] = ()  # parts of the breakdown

    def seconds(self, placed: Placed) -> float:
        """The predicted iteration time without the effect."""
        changed = self.without(placed)
        found: Estimate = estimate(changed.point, changed.hardware, self.operators)
        return found.seconds - sum(found.breakdown[part] for part in self.left_out)


def _device(**changes: object) -> Callable[[Placed], Placed]:
    return lambda placed: _hardware(placed, device=placed.hardware.device.model_copy(update=changes))


def _software(**changes: object) -> Callable[[Placed], Placed]:
    return lambda placed: _hardware(placed, software=placed.hardware.software.model_copy(update=changes))


def _hardware(placed: Placed, **changes: object) -> Placed:
    return replace(placed, hardware=placed.hardware.model_copy(update=changes))


def _no_recomputation(placed: Placed) -> Placed:
    training = placed.point.training.model_copy(update={"recompute": "none"})
    return replace(placed, point=placed.point.model_copy(update={"training": training}))


def _no_collective(placed: Placed) -> Placed:
    links = {"node": placed.hardware.node, "network": placed.hardware.network}
    return _hardware(placed, **{name: link.model_copy(update={"collective": 0.0}) for name, link in links.items()})


def _one_share(placed: Placed) -> Placed:
    whole = placed.hardware.network.whole
    return _hardware(placed, network=placed.hardware.network.model_copy(update={"alone": whole, "mixed": whole}))


def _one_node(placed: Placed) -> Placed:
    return _hardware(placed, network=placed.hardware.node.model_copy(update={"bandwidth": _MUCH}))


def _flat_attention(placed: Placed) -> Placed:
    return _device(attention_efficiency=placed.hardware.device.memory_efficiency)(placed)


ABLATIONS = (
    Ablation("recomputation's second forward pass", _no_recomputation),
    Ablation("the pipeline bubble", left_out=("bubble",)),
    Ablation("tensor-parallel communication", left_out=("tensor_communication",)),
    Ablation("what starts a collective costs", _no_collective),
    Ablation("the network between nodes", _one_node),
    Ablation("adapters shared by groups", _one_share),
    Ablation("messages between stages that block", _software(blocking_messages=False)),
    Ablation("data-parallel reduction", left_out=("data_communication",)),
    Ablation("reductions that a backward pass hides in part", _software(overlap_share=1.0)),
    Ablation("logits and loss on the last stage", operators=_NoHead),
    Ablation("element-wise kernels of a layer", operators=_NoElementwise),
    Ablation("adding up weight gradients", operators=_NoAccumulation),
    Ablation("the attention core's slower kernels", _flat_attention),
    Ablation("the softmax kernel that takes four heads", operators=_AlwaysFusedSoftmax),
    Ablation("tiles of a matrix product", _device(tiles=(Tile(rows=1, columns=1),))),
    Ablation("a last wave of tiles that is not full", _device(tail=0.0)),
    Ablation("dimensions that are no multiple of 8", _device(unaligned=1.0)),
    Ablation("tokens for tensor ranks, and the loss over them", _software(token_broadcasts=0, loss_reductions=0)),
    Ablation("actions that wait for the host", _software(action_seconds=0.0)),
    Ablation("the host between iterations", _device(iteration_seconds=0.0)),
    Ablation("kernel launches", _device(launch_seconds=0.0)),
    Ablation("time of a kernel whatever its size", _device(kernel_seconds=0.0)),
    Ablation("the optimizer", left_out=("optimizer",)),
    Ablation("the software stack", _software(slowdown=1.0, layer_seconds=0.0, adapters=None)),
)


def _set_of(row: PublishedRow) -> str:
    """The rows that a row stands with: those of its figure or table, where they are numbered, else of its source."""
    table = row.table or ""
    stack = ", ZeRO-3" if row.zero_stage == 3 else ""
    return f"{row.source.split(',')[0]}, {table}{stack}" if _NUMBERED.fullmatch(table) else row.source


@dataclass(frozen=True)
class Ablated:
    """An effect with the mean absolute error by set of rows: without it, and (effect None) with all."""

    effect: str | None
    errors: dict[str, float]


def ablate(rows: Iterable[PublishedRow]) -> list[Ablated]:
    """The error of every set of rows (a source, or a figure of one), with all effects and without each.

    Errors are shares of what was measured.
    """
    sets: dict[str, list[Case]] = {}
    for case in cases(rows)[0]:
        sets.setdefault(_set_of(case.row), []).append(case)
    everything = Ablation("")
    return [
        Ablated(
            one.effect or None,
            {
                name: mean(abs(error_of(case, one.seconds(case.placed))) for case in found)
                for name, found in sets.items()
            },
        )
        for one in (everything, *ABLATIONS)
    ]
