"""What follows a rank's last action: gradients summed over data ranks and tied embeddings, and the optimizer."""

from suite.experiment.point import Point
from suite.measure.flops import padded_vocab
from suite.simulate.hardware import Hardware
from suite.simulate.network import Group, all_gather, all_reduce, group
from suite.simulate.operators import BYTES

_OPTIMIZER_BYTES = 60  # read and written per parameter in 16-bit training: see `optimizer`


def reduction(point: Point, hardware: Hardware, parameters: int) -> float:
    """Seconds to sum a rank's gradients over its data-parallel group."""
    element = hardware.software.reduced_bytes if point.training.precision in ("fp16", "bf16") else BYTES[point.training.precision]
    ranks = group(point.parallel, "data", hardware.node_devices)
    if point.parallel.sharding == "zero1":
        value = BYTES[point.training.precision]
        return all_gather(hardware, ranks, element * parameters) + all_gather(hardware, ranks, value * parameters)
    return all_reduce(hardware, ranks, element * parameters)


def tied_embedding(point: Point, hardware: Hardware) -> float:
    """Seconds to sum the two copies of a tied embedding, of the first and the last stage."""
    parallel, model = point.parallel, point.model
    if not model.tied_embeddings or parallel.pipeline == 1:
        return 0.0
    vocabulary = padded_vocab(model.vocab_size, parallel.tensor) // parallel.tensor
    element = hardware.software.reduced_bytes if point.training.precision in ("fp16", "bf16") else BYTES[point.training.precision]
    pair = Group(2, 2 if parallel.ranks <= hardware.node_devices else 1)
    return all_reduce(hardware, pair, element * vocabulary * model.hidden_size)


def optimizer(point: Point, hardware: Hardware, parameters: float) -> float:
    """Seconds of gradient norm, clipping and AdamW over a rank's parameters.

    Per parameter in 16 bits: gradients copied to fp32 (6 bytes), unscaled and checked (8), their norm (4), clipped
    (8); AdamW reads gradient, master weight and moments and writes the last three (28); values written back (6).
    """
    device = hardware.device
    shards = point.parallel.data if point.parallel.sharding != "none" else 1
    return _OPTIMIZER_BYTES * parameters / shards / (device.memory_bandwidth * device.memory_efficiency)
