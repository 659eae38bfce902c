"""What an iteration needs besides its actions: gradients summed over ranks, parameters gathered, the optimizer."""

from suite.experiment.hardware import Hardware
from suite.experiment.pace import BYTES
from suite.experiment.point import Point
from suite.measure.flops import padded_vocab
from suite.simulate.network import Group, all_gather, all_reduce, group, stride

_LAYER_TENSORS = 12  # weights and biases of four linear layers and two norms


def gradient_bytes(point: Point, hardware: Hardware) -> int:
    """Bytes of a gradient on its way."""
    return hardware.software.reduced_bytes if BYTES[point.training.precision] == 2 else BYTES[point.training.precision]


def reduction_seconds(point: Point, hardware: Hardware, parameters: float) -> float:
    """Seconds to sum a rank's gradients over its data-parallel group; with ZeRO-1, and to gather its parameters."""
    ranks = group(point.parallel, "data", hardware.node_devices)
    size = gradient_bytes(point, hardware) * parameters
    if point.parallel.sharding == "zero1":
        values = BYTES[point.training.precision] * parameters
        return all_gather(hardware, ranks, size) + all_gather(hardware, ranks, values)
    return all_reduce(hardware, ranks, size)


def gathering_seconds(point: Point, hardware: Hardware, parameters: float) -> tuple[float, float]:
    """ZeRO-3's traffic of one microbatch: gathering all parameters, and again with the sum of their gradients."""
    ranks = group(point.parallel, "data", hardware.node_devices)
    gather = all_gather(hardware, ranks, BYTES[point.training.precision] * parameters)
    return gather, gather + all_gather(hardware, ranks, gradient_bytes(point, hardware) * parameters)


def tied_embedding_seconds(point: Point, hardware: Hardware) -> float:
    """Seconds to sum the gradients of a tied embedding's two copies, on the first and the last stage."""
    parallel, model = point.parallel, point.model
    if not model.tied_embeddings or parallel.pipeline == 1:
        return 0.0
    rows = padded_vocab(model.vocab_size, parallel.tensor) // parallel.tensor
    inside = stride(parallel, "pipeline") * (parallel.pipeline - 1) < hardware.node_devices
    return all_reduce(
        hardware, Group(2, 2 if inside else 1), gradient_bytes(point, hardware) * rows * model.hidden_size
    )


def optimizer_seconds(point: Point, hardware: Hardware, parameters: float) -> float:
    """Seconds of gradient norm, clipping and AdamW over a rank's parameters, all bound by memory.

    Per parameter AdamW reads gradient, weight and two moments and writes the last three, 7 numbers of 4 bytes (8 in
    fp64); the norm reads the gradient, clipping reads and writes it. In 16 bits also gradients are copied to fp32 (6),
    unscaled and checked (8), and values written back (6). A serial device issues the norm of every tensor by itself.
    """
    device, wide = hardware.device, BYTES[point.training.precision] == 2
    number = 4 if wide else BYTES[point.training.precision]
    moved = 10 * number + (20 if wide else 0)
    shards = point.parallel.data if point.parallel.sharding != "none" else 1
    size = moved * parameters / shards
    tensors = _LAYER_TENSORS * point.model.layers / point.parallel.pipeline if device.serial else 0
    host = device.iteration_seconds + tensors * device.launch_seconds
    return host + size / (device.bandwidth(size) * (device.update_efficiency or device.memory_efficiency))
