"""What actions and messages take where nothing is computed, as a point's `pace` section says."""

from suite.experiment.point import Pace, Point
from suite.pipeline.timeline import Costs, Link, Network

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


def costs(pace: Pace) -> Costs:
    """The actions' times, in seconds."""
    return Costs(pace.forward, pace.input_gradient, pace.weight_gradient)


def network(point: Point) -> Network:
    """What a pipeline message costs, in seconds; every pair of ranks has the same link."""
    pace = point.pace
    link = Link(pace.latency, pace.bandwidth or float("inf"))
    return Network(message_bytes(point), link, overlap=pace.overlap)


def message_bytes(point: Point) -> int:
    """Bytes of one pipeline message of one rank: a microbatch's hidden states, or this tensor rank's share of them."""
    parallel = point.parallel
    shares = parallel.tensor if parallel.sequence or parallel.scatter_gather else 1
    elements = point.model.seq_length * point.training.microbatch * point.model.hidden_size
    return elements * BYTES[point.training.precision] // shares
