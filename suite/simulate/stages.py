"""What each virtual stage's actions take, with recomputation, and the messages that it sends."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite.experiment.hardware import Hardware
from suite.experiment.pace import message_bytes
from suite.experiment.point import Point
from suite.model.split import layer_split, parts
from suite.pipeline.program import BACKWARD, FORWARD, INPUT_GRADIENT, RECOMPUTE, WEIGHT_GRADIENT
from suite.simulate.network import Group, all_gather, message, stride
from suite.simulate.operators import Operators, Passes
from suite.simulate.spent import NOTHING, Spent


@dataclass(frozen=True)
class Stage:
    """A virtual stage: what its actions spend, and the seconds of the messages that it sends on and back."""

    passes: Passes
    send_activation: float = 0.0
    send_gradient: float = 0.0

    def spent(self, kind: str) -> Spent:
        """What one action of a kind spends."""
        passes = self.passes
        return {
            FORWARD: passes.forward,
            RECOMPUTE: passes.forward,
            INPUT_GRADIENT: passes.input_gradient,
            WEIGHT_GRADIENT: passes.weight_gradient,
            BACKWARD: passes.input_gradient + passes.weight_gradient,
        }[kind]

    def sends(self, kind: str) -> float:
        """Seconds of the message that an action of a kind sends."""
        return {FORWARD: self.send_activation, INPUT_GRADIENT: self.send_gradient, BACKWARD: self.send_gradient}.get(
            kind, 0.0
        )


def stages(operators: Operators, hosts: Sequence[int]) -> list[Stage]:
    """Every virtual stage of the operators' point; `hosts` are the pipeline ranks of its stages.

    Full recomputation runs the layers' forward pass once more before their backward pass, selective recomputation the
    attention core's.
    """
    point, hardware = operators.point, operators.hardware
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    last = len(split) - 1
    attention, feed_forward = operators.halves()
    core = operators.core().forward
    kept = NOTHING, NOTHING
    again = {"none": kept, "selective": (core, NOTHING), "full": (attention.forward, feed_forward.forward)}
    attention, feed_forward = (
        half + Passes(input_gradient=forward)
        for half, forward in zip((attention, feed_forward), again[point.training.recompute], strict=True)
    )
    found = []
    for stage, halves in enumerate(split):
        attentions, feed_forwards = parts(halves)
        passes = attention * attentions + feed_forward * feed_forwards + operators.action()
        if stage == 0:
            passes += operators.embedding()
        if stage == last:
            passes += operators.head()
        ahead = send_seconds(point, hardware, hosts[stage], hosts[stage + 1]) if stage < last else 0.0
        behind = send_seconds(point, hardware, hosts[stage], hosts[stage - 1]) if stage else 0.0
        slowdown = hardware.software.slowdown
        found.append(Stage(passes * slowdown, ahead * slowdown, behind * slowdown))
    return found


def send_seconds(point: Point, hardware: Hardware, source: int, destination: int) -> float:
    """Seconds of a microbatch's message between two pipeline ranks; where it was cut, its shares are gathered again."""
    if source == destination:
        return 0.0
    parallel, size = point.parallel, message_bytes(point)
    distance = stride(parallel, "pipeline")
    inside = source * distance // hardware.node_devices == destination * distance // hardware.node_devices
    seconds = message(hardware, inside, size)
    if parallel.scatter_gather and not parallel.sequence:
        seconds += all_gather(hardware, Group(parallel.tensor, hardware.node_devices), size * parallel.tensor)
    return seconds
