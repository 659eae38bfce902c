"""From samples to the constants of device and links: each group of samples gives those that it alone shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from suite.calibrate.robust import Fitted, Unknown, fit
from suite.calibrate.samples import Sample
from suite.calibrate.sweep import Body
from suite.experiment.hardware import Device, Fit, Hardware, Link, Software, Stream
from suite.experiment.pace import BYTES
from suite.experiment.point import Model, Point, Training
from suite.model.sizes import rank_parameters
from suite.simulate.gemm import gemm_seconds
from suite.simulate.network import Group, all_gather, all_reduce, message
from suite.simulate.operators import Operators
from suite.simulate.stages import stages
from suite.simulate.update import optimizer_seconds

_FEWEST_BYTES = 50_000  # of a stream that shows a bandwidth and not the time of a call

_PRODUCTS = {"gemm_efficiency": Unknown(0.8, 0.1, 1.0), "operand_efficiency": Unknown(0.3, 0.02, 1.0)}
_CORES = {
    "flash_efficiency": Unknown(0.5, 0.01, 1.0),
    "flash_backward": Unknown(2.5, 1.0, 6.0),
    "attention_efficiency": Unknown(0.3, 0.01, 1.0),
}
_BODIES = {
    "memory_efficiency": Unknown(0.5, 0.02, 1.0),
    "launch_seconds": Unknown(2e-5, 1e-7, 1e-3),
    "backward_launches": Unknown(2.0, 0.5, 4.0),
    "action_seconds": Unknown(3e-4, 1e-6, 0.1),
}
_RESTS = {"iteration_seconds": Unknown(1e-3, 1e-6, 1.0), "update_efficiency": Unknown(0.5, 0.02, 1.0)}
_MESSAGES = {"latency": Unknown(1e-4, 1e-7, 0.1), "message_bandwidth": Unknown(1e9, 1e6, 1e13)}
_COLLECTIVES = {"collective": Unknown(1e-4, 1e-7, 0.1), "bandwidth": Unknown(1e9, 1e6, 1e13)}
_HOPS = {"hop": Unknown(1e-5, 1e-8, 0.1)}


@dataclass(frozen=True)
class Calibration:
    """What the samples say of the machine, and how well each group of them is met."""

    hardware: Hardware
    fits: dict[str, Fitted]


def calibrate(samples: Sequence[Sample], device: Device, software: Software, node_devices: int) -> Calibration:
    """The hardware that the samples show.

    `device` has what is known without measuring: its name, its memory, whether it is serial, and the peaks that a data
    sheet tells; the others are the best rates that were seen. Constants are those of a rank alone, and `shared` is what
    is left of its speed when all compute.
    """
    alone = [sample for sample in samples if sample.together == 1]
    together = [sample for sample in samples if sample.together > 1]
    fits: dict[str, Fitted] = {}

    def fitted(part: Any, group: str, unknowns: dict[str, Unknown], found: list[Sample], predict: Callable) -> Any:
        """The part with the constants that meet the group's samples."""
        fits[group] = one = fit(
            lambda values: [predict(part.model_copy(update=values), sample) for sample in found],
            [sample.seconds for sample in found],
            unknowns,
        )
        rows = f"{len(found)} {group} samples"
        notes = {n: Fit(rows=rows, low=unknowns[n].low, high=unknowns[n].high) for n in unknowns}
        return part.model_copy(update={**one.values, "fitted": {**part.fitted, **notes}})

    device = _streamed(_peaked(device, _of(alone, "product")), _of(alone, "stream"))
    device = fitted(device, "product", _PRODUCTS, _of(alone, "product"), _product)
    functions = {  # a GELU's tangent is two exponentials
        "function_seconds": _each(device, _of(alone, "function")) / 2,
        "mask_seconds": _each(device, _of(alone, "mask")),
    }
    device = device.model_copy(update=functions)

    def with_device(device: Device) -> Hardware:
        free = Link(bandwidth=1e15)
        return Hardware(device=device, software=software, node_devices=node_devices, node=free, network=free)

    bodies = [sample for sample in _of(alone, "body") if sample.sizes["part"] != "rest"]
    rests = [sample for sample in _of(alone, "body") if sample.sizes["part"] == "rest"]
    device = fitted(device, "core", _CORES, _of(alone, "core"), lambda d, one: _core(with_device(d), one))
    device = fitted(device, "body", _BODIES, bodies, lambda d, one: _body(with_device(d), one))
    device = fitted(device, "rest", _RESTS, rests, lambda d, one: _rest(with_device(d), one))
    device = device.model_copy(update={"shared": min(1.0, _shared(alone, together))})

    def with_node(node: Link) -> Hardware:
        network = node.model_copy(update={"fitted": {}})
        return with_device(device).model_copy(update={"node": node, "network": network})

    node = Link(bandwidth=1e9)
    collectives = [s for s in samples if s.what in ("all_reduce", "all_gather")]
    pairs = [s for s in collectives if s.sizes["ranks"] == 2]
    node = fitted(node, "message", _MESSAGES, _of(samples, "message"), lambda n, one: _message(with_node(n), one))
    node = fitted(node, "collective", _COLLECTIVES, pairs, lambda n, one: _collective(with_node(n), one))
    if further := [s for s in collectives if s.sizes["ranks"] > 2]:
        node = fitted(node, "collective of more", _HOPS, further, lambda n, one: _collective(with_node(n), one))
    hidden = min(1.0, max(0.0, _of(samples, "hidden")[0].seconds))
    stack = software.model_copy(update={"overlap_share": hidden, "overlap_tensor": hidden > 0.5})
    return Calibration(with_node(node).model_copy(update={"software": stack}), fits)


def _of(samples: Sequence[Sample], what: str) -> list[Sample]:
    return [sample for sample in samples if sample.what == what]


def _peaked(device: Device, products: list[Sample]) -> Device:
    """The device with the best rate of each precision, where it has no peak from a data sheet."""
    rates: dict[str, float] = {}
    for one in products:
        sizes = one.sizes
        rate = 2 * sizes["rows"] * sizes["columns"] * sizes["depth"] / one.seconds
        rates[sizes["precision"]] = max(rates.get(sizes["precision"], 0.0), rate)
    return device.model_copy(update={"peak": {**rates, **device.peak}})


def _streamed(device: Device, streams: list[Sample]) -> Device:
    """The device with the time of a call and the bandwidth by bytes of sums of two arrays into a third."""
    call = min(sample.seconds for sample in streams)
    found = []
    for sample in sorted(streams, key=lambda sample: sample.sizes["bytes"]):
        if sample.sizes["bytes"] >= _FEWEST_BYTES:
            rate = sample.sizes["bytes"] / max(sample.seconds - call, 0.1 * sample.seconds)
            found.append(Stream(bytes=sample.sizes["bytes"], bandwidth=rate))
    return device.model_copy(
        update={"kernel_seconds": call, "streams": tuple(found), "memory_bandwidth": found[-1].bandwidth}
    )


def _each(device: Device, functions: list[Sample]) -> float:
    """Seconds of an element beside what its reading and writing takes."""
    each = []
    for sample in functions:
        moved = sample.sizes["bytes"]
        spent = sample.seconds - device.kernel_seconds - moved / device.bandwidth(moved)
        each.append(max(0.0, spent) / sample.sizes["elements"])
    return median(each)


def _product(device: Device, sample: Sample) -> float:
    s = sample.sizes
    peak, element = device.peak[s["precision"]], BYTES[s["precision"]]
    return gemm_seconds(device, peak, element, s["rows"], s["columns"], s["depth"])


def _core(hardware: Hardware, sample: Sample) -> float:
    s = sample.sizes
    model = Model(
        layers=1,
        hidden_size=s["heads"] * s["width"],
        heads=s["heads"],
        seq_length=s["seq_length"],
        dropout=s["dropout"],
    )
    training = Training(global_batch=s["sequences"], microbatch=s["sequences"], precision=s["precision"])
    passes = Operators(Point(model=model, training=training), hardware).core()
    return passes.forward.seconds if s["part"] == "forward" else passes.input_gradient.seconds


def _point(sample: Sample) -> Point:
    sizes = {name: value for name, value in sample.sizes.items() if name not in ("part", "precision")}
    return Body(**sizes).point(sample.sizes["precision"])


def _body(hardware: Hardware, sample: Sample) -> float:
    (stage,) = stages(Operators(_point(sample), hardware), [0])
    return stage.spent(sample.sizes["part"]).seconds


def _rest(hardware: Hardware, sample: Sample) -> float:
    point = _point(sample)
    return optimizer_seconds(point, hardware, max(rank_parameters(point)))


def _shared(alone: list[Sample], together: list[Sample]) -> float:
    """Speed with all ranks computing over that of one alone: the median over everything that both did."""
    by_itself = {(one.what, *one.sizes.items()): one.seconds for one in alone}
    ratios = [by_itself[key] / one.seconds for one in together if (key := (one.what, *one.sizes.items())) in by_itself]
    return median(ratios) if ratios else 1.0


def _message(hardware: Hardware, sample: Sample) -> float:
    return message(hardware, True, sample.sizes["bytes"])


def _collective(hardware: Hardware, sample: Sample) -> float:
    ranks = Group(sample.sizes["ranks"], sample.sizes["ranks"])
    return (all_reduce if sample.what == "all_reduce" else all_gather)(hardware, ranks, sample.sizes["bytes"])
