"""What collectives and messages take, by bytes, group and where its ranks are.

A collective is a ring, of which every rank sends 2 (n-1)/n of an all-reduce's bytes, (n-1)/n of an all-gather's or a
reduce-scatter's. Inside a node it goes at the node's bandwidth. Across nodes the devices of a group lend it their
adapters, of whose line rate it gets a share that depends on whether it has all devices of its nodes, one of each, or
some.
"""

from dataclasses import dataclass

from suite.experiment.hardware import Hardware
from suite.experiment.point import Dimension, Parallel


@dataclass(frozen=True)
class Group:
    """Ranks of a collective: how many, and how many of them share a node."""

    size: int
    per_node: int

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.size // self.per_node)


def stride(parallel: Parallel, dimension: Dimension) -> int:
    """Ranks between neighbours in a dimension; it follows from the layout's order."""
    distance = 1
    for inner in parallel.order[: parallel.order.index(dimension)]:
        distance *= getattr(parallel, inner)
    return distance


def group(parallel: Parallel, dimension: Dimension, node_devices: int) -> Group:
    """The group of ranks that differ in one dimension."""
    size = getattr(parallel, dimension)
    return Group(size, max(1, min(size, node_devices // stride(parallel, dimension))))


def all_reduce(hardware: Hardware, ranks: Group, size: float) -> float:
    """Seconds to sum `size` bytes over the group."""
    return _ring(hardware, ranks, 2 * size * (ranks.size - 1) / ranks.size, 2)


def all_gather(hardware: Hardware, ranks: Group, size: float) -> float:
    """Seconds until every rank has all `size` bytes; a reduce-scatter takes the same."""
    return _ring(hardware, ranks, size * (ranks.size - 1) / ranks.size, 1)


def message(hardware: Hardware, inside: bool, size: float) -> float:
    """Seconds of a message of `size` bytes between two devices, inside a node or between two."""
    if inside:
        return hardware.node.latency + size / (hardware.node.message_bandwidth or hardware.node.bandwidth)
    return hardware.network.latency + size / (hardware.network.bandwidth * hardware.network.alone)


def _ring(hardware: Hardware, ranks: Group, volume: float, rounds: int) -> float:
    """Seconds of a ring in which every rank sends `volume` bytes, in `rounds` sweeps over the group."""
    if ranks.size <= 1:
        return 0.0
    node, network = hardware.node, hardware.network
    if ranks.nodes == 1:
        return node.collective + node.hop * (ranks.size - 2) + volume / node.bandwidth
    adapters = min(ranks.per_node, hardware.software.adapters or ranks.per_node)
    bandwidth = min(node.bandwidth, network.bandwidth * adapters * _share(hardware, ranks.per_node))
    hops = network.hop * rounds * (ranks.nodes - 1) + node.hop * (ranks.per_node - 1)
    return network.collective + hops + volume / bandwidth


def _share(hardware: Hardware, per_node: int) -> float:
    network = hardware.network
    return network.whole if per_node == hardware.node_devices else network.alone if per_node == 1 else network.mixed
