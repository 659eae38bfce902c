"""What each virtual stage's actions take, with recomputation and the messages that ranks wait for."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite.experiment.pace import message_bytes
from suite.experiment.point import Point
from suite.model.split import layer_split
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from suite.simulate.hardware import Hardware
from suite.simulate.network import Group, all_gather, message
from suite.simulate.operators import Operators, Passes
from suite.simulate.spent import Spent


@dataclass(frozen=True)
class Stage:
    """Seconds of a virtual stage's actions, by what they are spent on, and of the messages that it sends."""

    forward: Spent
    input_gradient: Spent
    weight_gradient: Spent
    send_activation: float = 0.0
    send_gradient: float = 0.0

    def seconds(self, blocking: bool) -> dict[str, float]:
        """The time of each kind of action; with `blocking` messages a rank is busy while it sends."""
        activation, gradient = (self.send_activation, self.send_gradient) if blocking else (0.0, 0.0)
        ahead = self.forward.seconds + activation
        behind, weights = self.input_gradient.seconds + gradient, self.weight_gradient.seconds
        return {FORWARD: ahead, INPUT_GRADIENT: behind, WEIGHT_GRADIENT: weights, BACKWARD: behind + weights}

    def spent(self, kind: str) -> Spent:
        """One action's seconds by what they are spent on."""
        return {
            FORWARD: self.forward,
            INPUT_GRADIENT: self.input_gradient,
            WEIGHT_GRADIENT: self.weight_gradient,
            BACKWARD: self.input_gradient + self.weight_gradient,
        }[kind]


def stages(point: Point, hardware: Hardware, hosts: Sequence[int]) -> list[Stage]:
    """Every virtual stage of a point, whose stages live on the pipeline ranks `hosts`."""
    operators = Operators(point, hardware)
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    layer, last = operators.layer(), len(split) - 1
    if point.training.recompute == "full":
        layer = Passes(layer.forward, layer.input_gradient + layer.forward, layer.weight_gradient)
    elif point.training.recompute == "selective":
        layer = Passes(layer.forward, layer.input_gradient + operators.core().forward, layer.weight_gradient)
    slowdown = hardware.software.slowdown
    found = []
    for stage, layers in enumerate(split):
        passes = layer * len(layers)
        if stage == 0:
            passes += operators.embedding()
        if stage == last:
            passes += operators.head()
        passes *= slowdown
        ahead = send(point, hardware, hosts[stage], hosts[stage + 1]) if stage < last else 0.0
        behind = send(point, hardware, hosts[stage], hosts[stage - 1]) if stage else 0.0
        found.append(Stage(passes.forward, passes.input_gradient, passes.weight_gradient, ahead, behind))
    return found


def send(point: Point, hardware: Hardware, source: int, destination: int) -> float:
    """Seconds of a microbatch's message between two pipeline ranks, its parts put together again where it was cut."""
    if source == destination:
        return 0.0
    parallel, size = point.parallel, message_bytes(point)
    inside = same_node(point, hardware.node_devices, source, destination)
    seconds = message(hardware.node, size) if inside else message(hardware.network, size / hardware.alone)
    if parallel.scatter_gather and not parallel.sequence and parallel.tensor > 1:
        group = Group(parallel.tensor, min(parallel.tensor, hardware.node_devices))
        seconds += all_gather(hardware, group, size * parallel.tensor)
    return seconds


def same_node(point: Point, node_devices: int, source: int, destination: int) -> bool:
    """Whether two pipeline ranks' first processes share a node."""
    stride = 1
    for inner in point.parallel.order:
        if inner == "pipeline":
            break
        stride *= getattr(point.parallel, inner)
    return source * stride // node_devices == destination * stride // node_devices
