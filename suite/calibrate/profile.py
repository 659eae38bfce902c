"""The cluster profile that a calibration writes, and its measurements beside it."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from suite.calibrate.constants import Calibration, calibrate
from suite.calibrate.machine import measure
from suite.calibrate.robust import Fitted
from suite.calibrate.samples import Sample
from suite.calibrate.sweep import Sweep
from suite.experiment.catalogue import load_cluster
from suite.experiment.cluster import read_cluster
from suite.experiment.errors import BadInput, Place, Problem
from suite.experiment.hardware import Device, software_named
from suite.experiment.point import Training
from suite.launch.job import now
from suite.measure.peaks import find_peak
from suite.measure.provenance import cores, cpu_model, host_environment, revision
from suite.resources import resource_dir

CLUSTERS = Path("slurm/clusters")
MEASUREMENTS = Path("results/calibration")
PRECISIONS: tuple[str, ...] = get_args(Training.model_fields["precision"].annotation)
MOST_RANKS = 64

Kind = Literal["cuda", "cpu"]

_FIRST_LINE = "# Measured by `suite calibrate`"


@dataclass(frozen=True)
class Asked:
    """What to calibrate, checked: the profile's name and file, the ranks, the precisions."""

    name: str
    file: Path
    ranks: int
    precisions: tuple[str, ...]

    @property
    def measurements(self) -> Path:
        """Where the samples go."""
        return MEASUREMENTS / f"{self.name}.json"


def asked(name: str | None, out: Path | None, ranks: int, precision: str) -> Asked:
    """What the command's words ask for. BadInput says what is wrong with them."""
    problems = []
    chosen = name if name is not None else out.stem if out is not None else "here"
    file = out if out is not None else CLUSTERS / f"{chosen}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", chosen):
        problems.append(Problem("a name is letters, digits, '.', '_' and '-'; here would work", Place(chosen), "NAME"))
    elif file.suffix != ".yaml" or file.stem != chosen:
        message = f"the file of profile {chosen} is called {chosen}.yaml; {file.with_name(chosen)}.yaml would work"
        problems.append(Problem(message, Place(str(file)), "--out"))
    elif file.is_dir() or (file.exists() and not file.read_text(errors="replace").startswith(_FIRST_LINE)):
        message = f"it is there, and no calibration wrote it; another name, such as {chosen}-measured, would work"
        problems.append(Problem(message, Place(str(file)), "--out" if out else "NAME"))
    elif chosen != "local" and (resource_dir("clusters") / f"{chosen}.yaml").exists() and not file.exists():
        message = f"the suite ships a cluster of this name; another, such as {chosen}-measured, would work"
        problems.append(Problem(message, Place(chosen), "NAME"))
    if not 2 <= ranks <= MOST_RANKS:
        message = f"got {ranks}; messages need 2 ranks or more, and no more than {MOST_RANKS}; 2 would work"
        problems.append(Problem(message, key="--ranks"))
    precisions = tuple(dict.fromkeys(filter(None, precision.split(","))))
    if unknown := [word for word in precisions if word not in PRECISIONS] or ([] if precisions else [precision]):
        message = f"got {unknown[0]!r}; a precision is one of {', '.join(PRECISIONS)}; fp32 would work"
        problems.append(Problem(message, key="--precision"))
    if problems:
        raise BadInput(problems)
    return Asked(chosen, file, ranks, precisions)


@dataclass(frozen=True)
class Written:
    """A calibration with the files that it went to."""

    asked: Asked
    calibration: Calibration
    samples: Sequence[Sample]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        hardware = self.calibration.hardware
        return {
            "cluster": self.asked.name,
            "file": str(self.asked.file),
            "measurements": str(self.asked.measurements),
            "samples": len(self.samples),
            "device": hardware.device.model_dump(mode="json", exclude={"fitted"}),
            "node": hardware.node.model_dump(mode="json", exclude={"fitted"}),
            "software": hardware.software.model_dump(mode="json", exclude={"fitted"}),
            "residuals": residuals(self.calibration.fits),
        }

    def summary(self) -> str:
        """What was found, in lines."""
        device, node = self.calibration.hardware.device, self.calibration.hardware.node
        peaks = ", ".join(f"{rate / 1e9:,.4g} GFLOP/s in {name}" for name, rate in device.peak.items())
        lines = [
            f"{device.name}: products {device.gemm_efficiency:.0%} of {peaks}; "
            f"memory {device.memory_bandwidth / 1e9:.3g} GB/s; speed beside busy neighbours {device.shared:.0%}",
            f"between ranks: a message {1e6 * node.latency:.3g} us and {(node.message_bandwidth or 0) / 1e9:.3g} GB/s, "
            f"a reduction {1e6 * node.collective:.3g} us and {node.bandwidth / 1e9:.3g} GB/s, "
            f"{self.calibration.hardware.software.overlap_share:.0%} of it hidden by products beside it",
        ]
        lines += [f"{group}: {_met(one)}" for group, one in residuals(self.calibration.fits).items()]
        lines.append(f"samples: {self.asked.measurements}")
        lines.append(f"profile: {self.asked.file}")
        return "\n".join(lines)


def residuals(fits: dict[str, Fitted]) -> dict[str, dict[str, float]]:
    """How well every group of samples is met: their number, and what deviations are in the middle and at most."""
    return {
        group: {"samples": len(one.deviations), "median": one.middle, "nine_of_ten": one.most}
        for group, one in fits.items()
    }


def calibrate_machine(wanted: Asked, sweep: Sweep) -> Written:
    """Measure this machine and write its profile, which reads back as a cluster.

    Raises:
        RuntimeError: a rank failed.
    """
    threads = load_cluster("local").threads_per_rank
    kind, devices = _devices(wanted.ranks, threads)
    device = _gpu(wanted.precisions) if kind == "cuda" else _processor(devices, threads)
    samples = measure(sweep, wanted.ranks, wanted.precisions, kind, threads)
    found = calibrate(samples, device, software_named("suite"), devices)
    write(wanted, found, samples, kind, threads)
    return Written(wanted, found, samples)


def write(wanted: Asked, found: Calibration, samples: Sequence[Sample], device: Kind, threads: int) -> None:
    """Write the profile and the samples that it is from."""
    local, fits = load_cluster("local"), residuals(found.fits)
    wanted.measurements.parent.mkdir(parents=True, exist_ok=True)
    beside = {
        "name": wanted.name,
        "date": now(),
        "environment": host_environment(),
        "ranks": wanted.ranks,
        "residuals": fits,
        "samples": [sample.as_json() for sample in samples],
    }
    _write(wanted.measurements, json.dumps(beside, indent=1) + "\n")
    profile = {
        "name": wanted.name,
        "title": f"{found.hardware.device.name}, measured",
        "max_ranks": local.max_ranks,
        "max_emulated_ranks": local.max_emulated_ranks,
        "device": device,
        "threads_per_rank": threads,
        "hardware": _plain(found.hardware.model_dump(mode="json", exclude_defaults=True)),
    }
    precisions = ", ".join(wanted.precisions)
    header = [
        f"{_FIRST_LINE} on {now()[:10]}, revision {revision()}: {wanted.ranks} ranks, {precisions}.",
        f"# The samples are in {wanted.measurements}. Between nodes nothing was measured: `network` is what `node` is.",
        *(f"# {group}: {_met(one)}" for group, one in fits.items()),
    ]
    wanted.file.parent.mkdir(parents=True, exist_ok=True)
    body = yaml.safe_dump(profile, sort_keys=False, width=120, default_flow_style=None)
    _write(wanted.file, "\n".join(header) + "\n" + body)
    read_cluster(wanted.file.absolute())


def _met(one: dict[str, float]) -> str:
    """How well a group of samples is met, in words."""
    return (
        f"{one['samples']} samples, median deviation {one['median']:.1%}, nine of ten within {one['nine_of_ten']:.1%}"
    )


def _devices(ranks: int, threads: int) -> tuple[Kind, int]:
    """What the ranks compute on, and for how many ranks this machine has one of their own."""
    import torch

    gpus = torch.cuda.device_count()
    return ("cuda", gpus) if gpus >= ranks else ("cpu", max(1, cores() // threads))


def _gpu(precisions: Sequence[str]) -> Device:
    """What is known of the GPU without measuring."""
    import torch

    found = torch.cuda.get_device_properties(0)
    peaks = {name: peak.flops_per_device for name in precisions if (peak := find_peak(found.name, name)[0])}
    source = "memory from the driver, peaks from data sheets where there are some, the rest measured"
    return Device(name=found.name, source=source, peak=peaks, memory_bytes=found.total_memory, memory_bandwidth=1.0)


def _processor(devices: int, threads: int) -> Device:
    """The same of a share of the processor."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / devices
    source = f"measured, threads per rank: {threads}"
    return Device(name=cpu_model(), source=source, peak={}, memory_bytes=memory, memory_bandwidth=1.0, serial=True)


def _plain(value: Any) -> Any:
    """Numbers with the digits that a measurement has."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _write(file: Path, text: str) -> None:
    """Appears whole or not at all."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
