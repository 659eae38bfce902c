"""From samples to the constants of device and links: each group of samples gives those that it alone shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from suite.calibrate.robust import Fitted, Unknown, fit
from suite.calibrate.samples import Sample
from suite.calibrate.sweep import Body, Core
from suite.experiment.hardware import Device, Fit, Hardware, Link, Software, Stream
from suite.experiment.pace import BYTES
from suite.model.sizes import rank_parameters
from suite.simulate.gemm import gemm_seconds
from suite.simulate.network import Group, all_gather, all_reduce, message
from suite.simulate.operators import Operators
from suite.simulate.stages import stages
from suite.simulate.update import optimizer_seconds

_REST = "rest"  # of an iteration: what is no action
_MOST_OF_IT = 0.5
_FEWEST_BYTES = 50_000  # of a stream that shows a bandwidth and not the time of a call

_PRODUCTS = {"gemm_efficiency": Unknown(0.8, 0.1, 1.0), "operand_efficiency": Unknown(0.3, 0.02, 1.0)}
_CORES = {
    "flash_efficiency": Unknown(0.5, 0.01, 1.0),
    "flash_backward": Unknown(2.5, 1.0, 6.0),
    "flash_row_seconds": Unknown(1e-7, 1e-12, 1e-4),
    "attention_efficiency": Unknown(0.3, 0.01, 1.0),
}
_BODIES = {
    "memory_efficiency": Unknown(0.5, 0.02, 1.0),
    "launch_seconds": Unknown(2e-5, 1e-7, 1e-3),
    "backward_launches": Unknown(2.0, 0.5, 4.0),
    "action_seconds": Unknown(3e-4, 1e-6, 0.1),
}
_FUNCTIONS = {"call": Unknown(1e-5, 1e-8, 1e-2), "each": Unknown(1e-9, 1e-13, 1e-5)}
_RESTS = {"iteration_seconds": Unknown(1e-3, 1e-6, 1.0), "update_efficiency": Unknown(0.5, 0.02, 1.0)}
_MESSAGES = {"latency": Unknown(1e-4, 1e-7, 0.1), "message_bandwidth": Unknown(1e9, 1e6, 1e13)}
_COLLECTIVES = {"collective": Unknown(1e-4, 1e-7, 0.1), "bandwidth": Unknown(1e9, 1e6, 1e13)}
_HOPS = {"hop": Unknown(1e-5, 1e-8, 0.1)}

Unknowns = dict[str, Unknown]


@dataclass(frozen=True)
class Calibration:
    """What the samples say of the machine, and how well each group of them is met."""

    hardware: Hardware
    fits: dict[str, Fitted]


def calibrate(samples: Sequence[Sample], device: Device, software: Software, node_devices: int) -> Calibration:
    """The hardware that the samples show.

    `device` has what is known without measuring: its name, its memory, whether it is serial, and the peaks that a data
    sheet tells; the others are the best rates that were seen. Constants are those of a rank alone, and `shared` is what
    is left of its speed when all compute. Every group of samples gives the constants that those before it leave open.
    """
    alone = [sample for sample in samples if sample.together == 1]
    device = _streamed(_peaked(device, _of(alone, "product")), _of(alone, "stream"))
    somewhere = Link(bandwidth=1.0)
    hardware = Hardware(device=device, software=software, node_devices=node_devices, node=somewhere, network=somewhere)
    fits: dict[str, Fitted] = {}

    def fitted(hardware: Hardware, part: str, group: str, unknowns: Unknowns, found: Sequence[Sample]) -> Hardware:
        """The hardware with the constants of one of its parts that meet the group's samples best."""
        old = getattr(hardware, part)

        def with_values(values: dict[str, Any]) -> Hardware:
            return hardware.model_copy(update={part: old.model_copy(update=values)})

        fits[group] = one = fit(
            lambda values: [predicted(with_values(values), sample) for sample in found],
            [sample.seconds for sample in found],
            unknowns,
        )
        notes = {
            name: Fit(rows=f"{len(found)} {group} samples", low=unknown.low, high=unknown.high)
            for name, unknown in unknowns.items()
        }
        return with_values({**one.values, "fitted": {**old.fitted, **notes}})

    hardware = fitted(hardware, "device", "product", _PRODUCTS, _of(alone, "product"))
    each = {  # a GELU's tangent is two exponentials
        "function_seconds": _each(hardware.device, _of(alone, "function")) / 2,
        "mask_seconds": _each(hardware.device, _of(alone, "mask")),
    }
    hardware = hardware.model_copy(update={"device": hardware.device.model_copy(update=each)})
    bodies = _of(alone, "body")
    hardware = fitted(hardware, "device", "core", _CORES, _of(alone, "core"))
    hardware = fitted(hardware, "device", "body", _BODIES, [one for one in bodies if one.sizes["part"] != _REST])
    hardware = fitted(hardware, "device", "rest", _RESTS, [one for one in bodies if one.sizes["part"] == _REST])

    collectives = [*_of(samples, "all_reduce"), *_of(samples, "all_gather")]
    hardware = fitted(hardware, "node", "message", _MESSAGES, _of(samples, "message"))
    hops = _HOPS if len({sample.sizes["ranks"] for sample in collectives}) > 1 else {}
    hardware = fitted(hardware, "node", "collective", _COLLECTIVES | hops, collectives)
    hidden = min(1.0, max(0.0, _of(samples, "hidden")[0].seconds))
    shared = min(1.0, _shared(alone, [sample for sample in samples if sample.together > 1]))
    parts = {
        "device": hardware.device.model_copy(update={"shared": shared}),
        "software": software.model_copy(update={"overlap_share": hidden, "overlap_tensor": hidden > _MOST_OF_IT}),
        "network": hardware.node.model_copy(update={"fitted": {}}),
    }
    return Calibration(hardware.model_copy(update=parts), fits)


def predicted(hardware: Hardware, sample: Sample) -> float:
    """What the simulator says that a sample takes, in seconds."""
    sizes = sample.sizes
    if sample.what == "product":
        peak, element = hardware.device.peak[sizes["precision"]], BYTES[sizes["precision"]]
        return gemm_seconds(hardware.device, peak, element, sizes["rows"], sizes["columns"], sizes["depth"])
    if sample.what == "message":
        return message(hardware, True, sizes["bytes"])
    if sample.what in ("all_reduce", "all_gather"):
        ranks = Group(sizes["ranks"], sizes["ranks"])
        return (all_reduce if sample.what == "all_reduce" else all_gather)(hardware, ranks, sizes["bytes"])
    shape = {name: value for name, value in sizes.items() if name not in ("part", "precision")}
    if sample.what == "core":
        passes = Operators(Core(**shape).point(sizes["precision"]), hardware).core()
        return passes.forward.seconds if sizes["part"] == "forward" else passes.input_gradient.seconds
    point = Body(**shape).point(sizes["precision"])
    if sizes["part"] == _REST:
        return optimizer_seconds(point, hardware, max(rank_parameters(point)))
    (stage,) = stages(Operators(point, hardware), [0])
    return stage.spent(sizes["part"]).seconds


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
    """Seconds of an element, beside those of a call and what reading and writing takes."""

    def seconds(values: dict[str, float]) -> list[float]:
        moved = [sample.sizes["bytes"] for sample in functions]
        return [
            values["call"] + size / device.bandwidth(size) + values["each"] * sample.sizes["elements"]
            for size, sample in zip(moved, functions, strict=True)
        ]

    return fit(seconds, [sample.seconds for sample in functions], _FUNCTIONS).values["each"]


def _shared(alone: list[Sample], together: list[Sample]) -> float:
    """Speed with all ranks computing over that of one alone: the median over everything that both did."""
    by_itself = {(one.what, *one.sizes.items()): one.seconds for one in alone}
    ratios = [by_itself[key] / one.seconds for one in together if (key := (one.what, *one.sizes.items())) in by_itself]
    return median(ratios) if ratios else 1.0
