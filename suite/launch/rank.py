"""One rank of a point: joins the process group, trains, measures, and hands its samples to rank 0."""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from suite.launch.emulated import emulate
from suite.launch.failure import STALLED, describe
from suite.launch.job import Job, JobFolder
from suite.launch.preflight import preflight, ranks_on_one_host
from suite.launch.processes import end_with_parent
from suite.launch.samples import collect, rank_samples
from suite.launch.watchdog import Board, Notes, Watchdog, account
from suite.measure.gemm import measured_peak
from suite.measure.memory import LiveTensorBytes
from suite.measure.peaks import find_peak
from suite.measure.provenance import cores
from suite.parallel.agreement import agree
from suite.parallel.topology import Topology, build_topology
from suite.pipeline.lowering import Lowered
from suite.training.evaluation import evaluate
from suite.training.precision import DTYPES
from suite.training.step import IterationSamples, TrainingStep

WATCHDOG_FIRST = 60.0  # seconds that the process group waits longer than the watchdog, which has more to say
FORK_SECONDS = 120.0  # in which the supervisor has forked all ranks of its host
_LOOK_SECONDS = 0.02


class Place(NamedTuple):
    """Where a rank runs."""

    rank: int
    local_rank: int
    device: torch.device
    oversubscribed: bool


def run_rank(job: Job, lowered: Lowered, supervisor: int, node: int) -> dict[str, Any] | None:
    """The entry point under the supervisor of a node; rank 0 returns the fields of the record."""
    _take_signals()
    end_with_parent(supervisor)
    folder = JobFolder(job.folder)
    rank = int(os.environ["RANK"])
    folder.register(rank, os.getpid())
    try:
        _await_forks(folder)
        return _measure(job, lowered, folder, node)
    except BaseException as error:
        folder.report_error(rank, describe(error, folder, rank, ranks_here()))
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def ranks_here() -> range:
    """The ranks of this node."""
    first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
    return range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))


def _await_forks(folder: JobFolder) -> None:
    """Wait until every rank of this host is there.

    Whoever connects to the supervisor's store sets its threads to work, and a rank that is forked while one of them
    holds a lock waits for that lock for ever. So nobody connects before all are forked.
    """
    missing = set(ranks_here())
    deadline = time.monotonic() + FORK_SECONDS
    while missing := missing - folder.processes(missing).keys():
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            raise TimeoutError(f"after {FORK_SECONDS:g} s these ranks of this host have not started: {ranks}")
        time.sleep(_LOOK_SECONDS)


def _take_signals() -> None:
    """Take signals as a plain process does, not as the supervisor that this was forked from.

    SLURM's warning goes to the whole process group, and is the supervisor's matter.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _place(job: Job) -> Place:
    rank, local, ranks_here = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    on_gpu = job.device == "cuda" or (job.device == "auto" and torch.cuda.device_count() >= ranks_here)
    if on_gpu and job.source == "measured":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        return Place(rank, local, device, oversubscribed=ranks_here > torch.cuda.device_count())
    torch.set_num_threads(job.threads_per_rank)
    return Place(rank, local, torch.device("cpu"), ranks_here * job.threads_per_rank > cores())


def _measure(job: Job, lowered: Lowered, folder: JobFolder, node: int) -> dict[str, Any] | None:
    place = _place(job)
    parallel = job.point.parallel
    board = _watch(job, lowered, folder, Board(folder.board(node), place.rank, ranks_here().start))
    if parallel.ranks > 1:
        backend = "nccl" if place.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=job.point.measure.stall_seconds + WATCHDOG_FIRST)
        dist.init_process_group(backend, timeout=timeout)
    if place.device.type == "cuda" and lowered.schedule.cap is not None:
        raise RuntimeError(
            f"schedule {lowered.schedule.name} needs messages with tags, which NCCL does not have; "
            "a cluster profile with device: cpu would work"
        )
    board.note_phase("comparing devices and links")
    topology = build_topology(parallel, place.device.type, lowered.schedule.placement)
    if job.source == "emulated":
        result = emulate(job, lowered, topology, folder, board)
    else:
        result = _train(job, lowered, topology, folder, place, board)
    if parallel.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    return result


def _train(
    job: Job, lowered: Lowered, topology: Topology, folder: JobFolder, place: Place, board: Board
) -> dict[str, Any] | None:
    if place.device.type == "cpu":
        crowded = ranks_on_one_host(topology.world) * job.threads_per_rank > cores()
        place = place._replace(oversubscribed=place.oversubscribed or crowded)
    found = preflight(topology, place.device, place.oversubscribed)
    board.note_phase("building the model")
    peak = _peak(job, place)
    step = TrainingStep(job.point, lowered, topology, place.device, board)
    agree(topology.world, _facts(job, step))
    run = _Iterations(job, lowered, step, place, folder)
    run.all()
    board.note_phase("gathering the samples")
    kept = {
        "peak_memory_bytes": run.memory,
        "optimizer_bytes": sum(tensor.nbytes for tensor in step.optimizer.state),
        "skipped_steps": step.loss_scale.skipped,
        "peak": peak,
    }
    here = rank_samples(topology, step.transport, run.samples, **kept)
    result = collect(job.point, here, run.samples, topology.world, folder)
    if result is not None:
        result["environment"] = _environment(job, place, step, result.pop("peaks"))
        result["kernels"] = step.kernels.names
        result["oversubscribed"] = place.oversubscribed
        result["checkpoint"] = run.checkpoint
        result["preflight"] = found
        result["evaluation_loss"] = run.evaluation_loss
    return result


def _watch(job: Job, lowered: Lowered, folder: JobFolder, board: Board) -> Board:
    """Start this rank's watchdog; returns the board that it notes its progress on."""

    def stalled(notes: Notes, now: float) -> None:
        limit = job.point.measure.stall_seconds
        text = account(notes, lowered, job.point.parallel, now)
        message = f"got no further within the limit (measure.stall_seconds={limit:g}); the state of every rank:\n{text}"
        folder.report_error(
            board.rank, {"time": time.time(), "kind": STALLED, "message": message, "traceback": "", "vanished": []}
        )
        for process in folder.processes(notes).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)  # a stopped rank would not take the supervisor's signal to end

    Watchdog(board, job.point.measure.stall_seconds, stalled).start()
    return board


def _facts(job: Job, step: TrainingStep) -> dict[str, Any]:
    """What every rank must have alike: a message of another shape or type would end the process or change values."""
    return {
        "point": job.point.id,
        "message shape": step.transport.shape,
        "message type": str(step.transport.dtype),
        "torch": torch.__version__,
        "suite": job.revision,
    }


def _peak(job: Job, place: Place) -> float | None:
    """This rank's share of the device's peak in FLOP/s, measured where no table can know it."""
    if place.device.type == "cuda" or place.oversubscribed:
        return None
    if job.point.parallel.ranks > 1:
        dist.barrier()
    return measured_peak(DTYPES[job.point.training.precision], place.device)


class _Iterations:
    """The iterations of one launch on this rank, with the checkpoints between them."""

    def __init__(self, job: Job, lowered: Lowered, step: TrainingStep, place: Place, folder: JobFolder) -> None:
        self.lowered, self.step, self.device = lowered, step, place.device
        self.measure, self.settings = job.point.measure, job.point.checkpoint
        self.folder = folder
        self.folder_of_first = folder if place.rank == 0 else None
        self.samples: list[IterationSamples] = []
        self.memory = 0
        self.checkpoint: dict[str, Any] | None = None
        self.evaluation_loss: float | None = None

    def all(self) -> None:
        """Load if asked, run and time every iteration, save between them; evaluate, profile and export if asked.

        The last of the warm-up also measures memory on a CPU, which slows it down.
        """
        if self.settings.weights:
            self._import(self.settings.weights)
        first = self._checkpoints()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        count = self.measure.warmup + self.measure.iterations
        for iteration in range(first, first + count):
            if self.device.type == "cpu" and iteration == first + self.measure.warmup - 1:
                with LiveTensorBytes(self.step.live_tensors(), self.step.resizes) as live:
                    self._one(iteration)
                self.memory = live.peak
            else:
                self._one(iteration)
        if self.device.type == "cuda":
            self.memory = torch.cuda.max_memory_allocated(self.device)
        if self.checkpoint is not None and self.checkpoint["saves"]:
            self._reload(self.checkpoint["loads"])
        if self.measure.evaluation:
            self.step.notes.note_phase("evaluating")
            self.evaluation_loss = evaluate(self.step, self.lowered, self.measure.evaluation)
        if self.measure.profile:
            self._profile(first + count)
        if self.settings.export:
            self._export()

    def _one(self, iteration: int) -> None:
        self.samples.append(self.step.run(iteration))
        if self.folder_of_first is not None:
            self.folder_of_first.note_iteration(iteration, self.samples[-1].seconds, self.samples[-1].loss)
        if self.settings.every and (iteration + 1) % self.settings.every == 0:
            self.step.notes.note_phase("saving or loading a checkpoint")
            assert self.checkpoint is not None
            self.checkpoint["saves"].append(self.store.save(iteration + 1)._asdict())

    def _checkpoints(self) -> int:
        """Set checkpoints up and load the newest if asked; returns the first iteration."""
        if not self.settings.every and not self.settings.load:
            return 0
        from suite.training.checkpoint import Checkpoints

        self.step.notes.note_phase("saving or loading a checkpoint")
        path = Path(self.settings.path) if self.settings.path else self.folder.path / "checkpoint"
        self.store = Checkpoints(path, self.step)
        loaded = self.store.load() if self.settings.load else None
        if self.settings.load and loaded is None:
            raise FileNotFoundError(f"checkpoint.path={path}: there is no whole checkpoint to load")
        self.checkpoint = {"path": str(path), "loads": [loaded._asdict()] if loaded else [], "saves": []}
        return loaded.iteration if loaded else 0

    def _reload(self, loads: list[dict[str, Any]]) -> None:
        """Read the last checkpoint back: what was written can be read, and reading is timed."""
        self.step.notes.note_phase("saving or loading a checkpoint")
        timing = self.store.load()
        assert timing is not None
        loads.append(timing._asdict())

    def _import(self, folder: str) -> None:
        from suite.training.gpt2_weights import import_gpt2

        self.step.notes.note_phase("saving or loading a checkpoint")
        import_gpt2(folder, self.step)

    def _export(self) -> None:
        from suite.training.gpt2_weights import export_gpt2

        self.step.notes.note_phase("saving or loading a checkpoint")
        export_gpt2(self.folder.path / "gpt2", self.step)

    def _profile(self, iteration: int) -> None:
        """One iteration that is not timed, under torch's profiler; the trace goes to the job's folder."""
        from torch.profiler import ProfilerActivity, profile

        on_gpu = self.device.type == "cuda"
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
            self.step.run(iteration)
        profiler.export_chrome_trace(str(self.folder.path / f"profile-rank-{self.step.topology.rank}.json"))


def _environment(job: Job, place: Place, step: TrainingStep, peaks: list[float | None]) -> dict[str, Any]:
    """Device, threads, data, and the peak with its source, or the reason why there is none."""
    on_gpu = place.device.type == "cuda"
    name = torch.cuda.get_device_name(place.device) if on_gpu else None
    fields: dict[str, Any] = {
        "device": name or "cpu",
        "backend": "nccl" if on_gpu else step.topology.backend,
        "backend_version": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
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
            f"measured: best of a GEMM sweep in {job.point.training.precision}, dense, threads per rank: "
            f"{torch.get_num_threads()}, ranks at once: {len(peaks)}, mean over ranks"
        )
    else:
        fields["peak_reason"] = "oversubscribed: the ranks' threads exceed the cores, so no rank has a peak of its own"
    return fields
