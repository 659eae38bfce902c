"""One rank of a point: joins the process group, trains, measures, and hands its samples to rank 0."""

import json
import os
import signal
import statistics
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from suite.launch.failure import describe
from suite.launch.job import Job, JobFolder
from suite.launch.processes import end_with_parent
from suite.measure.gemm import measured_peak
from suite.measure.memory import LiveTensorBytes, resident_bytes
from suite.measure.peaks import find_peak
from suite.measure.provenance import cores
from suite.parallel.topology import Topology, build_topology
from suite.pipeline.lowering import Lowered
from suite.training.precision import DTYPES
from suite.training.step import IterationSamples, TrainingStep

MESSAGE_TIMEOUT = timedelta(minutes=10)


class Place(NamedTuple):
    """Where a rank runs."""

    rank: int
    local_rank: int
    device: torch.device
    oversubscribed: bool


def run_rank(job: Job, lowered: Lowered, supervisor: int) -> dict[str, Any] | None:
    """The entry point under the supervisor; rank 0 returns the fields of the record."""
    _take_signals()
    end_with_parent(supervisor)
    folder = JobFolder(job.folder)
    rank = int(os.environ["RANK"])
    folder.register(rank, os.getpid())
    try:
        return _measure(job, lowered, folder)
    except BaseException as error:
        folder.report_error(rank, describe(error, folder, rank))
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _take_signals() -> None:
    """Take signals as a plain process does, not as the supervisor that this was forked from."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)


def _place(job: Job) -> Place:
    rank, local, ranks_here = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    on_gpu = job.device == "cuda" or (job.device == "auto" and torch.cuda.device_count() >= ranks_here)
    if on_gpu:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        return Place(rank, local, device, oversubscribed=ranks_here > torch.cuda.device_count())
    torch.set_num_threads(job.threads_per_rank)
    return Place(rank, local, torch.device("cpu"), ranks_here * job.threads_per_rank > cores())


def _measure(job: Job, lowered: Lowered, folder: JobFolder) -> dict[str, Any] | None:
    place = _place(job)
    parallel = job.point.parallel
    if parallel.ranks > 1:
        backend = "nccl" if place.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=MESSAGE_TIMEOUT)
    placement = lowered.schedule.placement[0]
    topology = build_topology(parallel, place.device.type, placement[0], placement[-1])
    peak = _peak(job, place)
    step = TrainingStep(job.point, lowered, topology, place.device)
    progress = folder.progress_file if place.rank == 0 else None
    samples, memory = _iterate(job, step, place.device, progress)
    here = _rank_samples(step, topology, samples, memory, peak)
    result = _collect(job, here, samples, place.rank, parallel.ranks)
    if result is not None:
        result["environment"] = _environment(job, place, step, result.pop("peaks"))
        result["kernels"] = step.kernels.names
        result["oversubscribed"] = place.oversubscribed
    if parallel.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    return result


def _peak(job: Job, place: Place) -> float | None:
    """This rank's share of the device's peak in FLOP/s, measured where no table can know it."""
    if place.device.type == "cuda" or place.oversubscribed:
        return None
    if job.point.parallel.ranks > 1:
        dist.barrier()
    return measured_peak(DTYPES[job.point.training.precision], place.device)


def _iterate(
    job: Job, step: TrainingStep, device: torch.device, progress: Path | None
) -> tuple[list[IterationSamples], int]:
    """All iterations; the last of the warm-up also measures memory, which slows it down."""
    measure = job.point.measure
    samples: list[IterationSamples] = []
    memory = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for iteration in range(measure.warmup + measure.iterations):
        if device.type == "cpu" and iteration == measure.warmup - 1:
            with LiveTensorBytes(step.live_tensors()) as live:
                samples.append(step.run(iteration))
            memory = live.peak
        else:
            samples.append(step.run(iteration))
        if progress is not None:
            line = {"iteration": iteration, "seconds": samples[-1].seconds, "loss": samples[-1].loss}
            with progress.open("a") as file:
                file.write(json.dumps(line) + "\n")
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    return samples, memory


def _rank_samples(
    step: TrainingStep, topology: Topology, samples: list[IterationSamples], memory: int, peak: float | None
) -> dict[str, Any]:
    kinds = sorted({kind for sample in samples for kind in sample.busy_by_action})
    links = {
        "pipeline": step.transport.bytes_sent,
        "tensor": topology.tensor.traffic.bytes,
        "data": topology.data.traffic.bytes,
        "embedding": topology.embedding.traffic.bytes,
    }
    return {
        "rank": topology.rank,
        "coords": topology.coords,
        "peak_memory_bytes": memory,
        "rss_bytes": resident_bytes(),
        "optimizer_bytes": sum(tensor.nbytes for tensor in step.optimizer.state),
        "busy_seconds": [sum(sample.busy_by_action.values()) for sample in samples],
        "busy_by_action": {kind: [sample.busy_by_action.get(kind, 0.0) for sample in samples] for kind in kinds},
        "bytes_by_link": {link: count // len(samples) for link, count in links.items()},
        "skipped_steps": step.loss_scale.skipped,
        "seconds": [sample.seconds for sample in samples],
        "reduction_wait": [sample.reduction_wait for sample in samples],
        "optimizer": [sample.optimizer for sample in samples],
        "window": [(sample.actions[0].start, sample.actions[-1].end) for sample in samples],
        "peak": peak,
    }


def _gather(value: Any, rank: int, size: int) -> list[Any] | None:
    """Every rank's value, on rank 0."""
    if size == 1:
        return [value]
    values: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(value, values, dst=0)
    return values


def _collect(
    job: Job, here: dict[str, Any], samples: list[IterationSamples], rank: int, size: int
) -> dict[str, Any] | None:
    """The record's samples on rank 0: the slowest rank's times, every rank's own, one traced iteration."""
    ranks = _gather(here, rank, size)
    slowest = _longest(ranks, "seconds") if ranks else []
    iteration = [_median_iteration(slowest, job.point.measure.warmup)] if ranks else [0]
    trace = None
    if job.point.measure.trace:
        if size > 1:
            dist.broadcast_object_list(iteration, src=0)
        trace = _gather((here["coords"], samples[iteration[0]].actions), rank, size)
    if ranks is None:
        return None
    spans = range(len(samples))
    windows = [[one["window"][k] for one in ranks] for k in spans]
    result = {
        "iterations": {
            "seconds": slowest,
            "loss": [sample.loss for sample in samples],
            "grad_norm": [sample.grad_norm for sample in samples],
            "warmup": job.point.measure.warmup,
            "forward_backward_seconds": [max(e for _, e in w) - min(s for s, _ in w) for w in windows],
        },
        "breakdown_seconds": {
            "actions": _longest(ranks, "busy_seconds"),
            "reduction_wait": _longest(ranks, "reduction_wait"),
            "optimizer": _longest(ranks, "optimizer"),
        },
        "peaks": [one["peak"] for one in ranks],
        "trace": _trace(iteration[0], trace) if trace else None,
    }
    private = ("seconds", "reduction_wait", "optimizer", "window", "peak")
    result["ranks"] = [{k: v for k, v in one.items() if k not in private} for one in ranks]
    return result


def _longest(ranks: list[dict[str, Any]], name: str) -> list[float]:
    return [max(values) for values in zip(*(one[name] for one in ranks), strict=True)]


def _median_iteration(seconds: list[float], warmup: int) -> int:
    """The kept iteration whose time is the (lower) median."""
    kept = seconds[warmup:]
    return warmup + kept.index(statistics.median_low(kept))


def _trace(iteration: int, gathered: list[Any]) -> dict[str, Any]:
    """One pipeline's actions (first tensor and data coordinate), from the first start on any of its ranks."""
    rows = {c["pipeline"]: actions for c, actions in gathered if c["tensor"] == 0 and c["data"] == 0}
    origin = min(action.start for actions in rows.values() for action in actions)
    spans = [
        {
            "rank": rank,
            "kind": action.kind,
            "stage": action.stage,
            "microbatch": action.microbatch,
            "start": action.start - origin,
            "end": action.end - origin,
        }
        for rank, actions in sorted(rows.items())
        for action in actions
    ]
    return {"iteration": iteration, "spans": spans}


def _environment(job: Job, place: Place, step: TrainingStep, peaks: list[float | None]) -> dict[str, Any]:
    """Device, threads, data, and the peak with its source, or the reason why there is none."""
    on_gpu = place.device.type == "cuda"
    name = torch.cuda.get_device_name(place.device) if on_gpu else None
    fields: dict[str, Any] = {
        "device": name or "cpu",
        "backend": "nccl" if on_gpu else "gloo",
        "driver": torch.version.cuda if on_gpu else None,
        "threads_per_rank": torch.get_num_threads(),
        "data": step.batches.source.digest,
        "cluster": job.point.cluster,
        "peak_flops_per_rank": None,
        "peak_source": None,
        "peak_reason": None,
    }
    known = [peak for peak in peaks if peak is not None]
    if name:
        peak, reason = find_peak(name, job.point.training.precision)
        fields["peak_flops_per_rank"] = peak.flops_per_device if peak else None
        fields["peak_source"] = peak.source if peak else None
        fields["peak_reason"] = reason
    elif known:
        fields["peak_flops_per_rank"] = sum(known) / len(known)
        fields["peak_source"] = (
            f"measured: best of a GEMM sweep in {job.point.training.precision}, dense, "
            f"{torch.get_num_threads()} thread(s), all {len(peaks)} rank(s) at once, mean over ranks"
        )
    else:
        fields["peak_reason"] = "oversubscribed: the ranks' threads exceed the cores, so no rank has a peak of its own"
    return fields
