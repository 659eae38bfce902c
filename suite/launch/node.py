"""What runs on each node: one submitit task that starts the node's ranks and watches them; the first node's makes the
record."""

import atexit
import gc
import logging
import os
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.launch.failure import cause, memory_kills, out_of_memory_since
from suite.launch.job import Job, JobFolder, now
from suite.launch.other_nodes import Exits, OtherNodes
from suite.launch.watchdog import Board, account
from suite.measure.flops import FLOPS_VERSION
from suite.measure.provenance import host_environment
from suite.pipeline.generators import generate
from suite.pipeline.lowering import Lowered
from suite.pipeline.proof import prove
from suite.records.schema import Record

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

SHUTDOWN_SECONDS = 3  # ranks take signals as plain processes do; what is left after this is killed


class Interrupted(BaseException):
    """A signal asks the node's task to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"the ranks' supervisor was told to end by {signal.Signals(number).name}")


@dataclass(frozen=True)
class NodePlace:
    """Which of a launch's nodes this is, and where its ranks meet the others."""

    index: int
    count: int
    endpoint: str  # host:port of the first node; it takes any free port where it is alone
    environment: dict[str, Any] = field(default_factory=dict)  # what the record says of the job


ALONE = NodePlace(0, 1, "127.0.0.1:0")


def run_node(job: Job, place: NodePlace = ALONE) -> Path:
    """Run the launch and write its record, whatever happened; returns the record's path.

    A signal that asks this process to end is a failure like any other. One that kills it leaves no record here:
    the front sees that, and the ranks end with it.
    """
    started = now()
    try:
        record = node_record(job, place)
    except Interrupted as wish:
        record = job.record("failed", str(wish), started, environment={**host_environment(), **place.environment})
    return job.write(record)


def node_record(job: Job, place: NodePlace) -> Record:
    """Run this node's part of the launch; the record of the launch, which is worth something on the first node only.

    Raises Interrupted.
    """
    started = now()
    environment = {**host_environment(), **place.environment}
    try:
        lowered = prove(generate(job.point.schedule, job.point.parallel.pipeline, job.point.microbatches)).lowered
        return _launch(job, place, lowered, started, environment)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        if not job.folder.exists():
            reason = f"the launch's folder was deleted while it ran: {job.folder}\n\n{reason}"
        return job.record("failed", reason, started, environment=environment)


def _launch(job: Job, place: NodePlace, lowered: Lowered, started: str, environment: dict[str, Any]) -> Record:
    """Run the ranks under torch's elastic agent, and make the record."""
    os.environ["OMP_NUM_THREADS"] = str(job.threads_per_rank)  # before torch reads it
    # It would log a failed rank, which is in the record, with a formatter that takes seconds to import.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    # Imported only here: the ranks are forked, so that they find all of it imported.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from suite.launch.rank import run_rank

    atexit.register(gc.freeze)  # or the interpreter looks through all of torch as it ends, for half a second or more
    # Seconds to import, once here instead of in every rank.
    given = lowered.schedule.virtual_stages > 1 or job.point.training.recompute != "none"
    if job.source == "measured" and given:
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 - a backward pass from a given gradient asks for it
    if job.point.checkpoint.every or job.point.checkpoint.load:
        import suite.training.checkpoint
    if job.point.parallel.sharding == "zero3":
        import suite.parallel.fully_sharded  # noqa: F401
    folder = JobFolder(job.folder)
    count = job.point.parallel.ranks // place.count
    here = range(place.index * count, (place.index + 1) * count)
    board = Board.create(folder.board(place.index), here)
    others = OtherNodes(folder, place.index, place.environment.get("hosts", []), place.count)
    kills = memory_kills()
    try:
        with others.watched(here):
            start = elastic_launch(_config(job, place, folder, count), run_rank)
            results = start(job, lowered, os.getpid(), place.index)
    except SignalException as error:
        raise Interrupted(error.sigval) from error
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items() if rank not in others.ended}
        doing = account(board.read(), lowered, job.point.parallel, time.monotonic())
        others.tell(own := Exits(codes, out_of_memory_since(kills), doing))
        heard = others.ask() if place.index == 0 else {}
        status, reason = cause(folder, {place.index: own, **heard}, others.names)
        return job.record(status, reason, started, environment=environment)
    fields = results.get(0) or {}  # of rank 0, which is the first node's
    fields["environment"] = {**environment, **fields.get("environment", {})}
    return job.record("ok", None, started, flops_version=FLOPS_VERSION, **fields)


def _config(job: Job, place: NodePlace, folder: JobFolder, ranks: int) -> "LaunchConfig":
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    alone = place.count == 1
    logs = folder.logs / f"node-{place.index}"
    logs.mkdir(exist_ok=True)
    return LaunchConfig(
        min_nodes=place.count,
        max_nodes=place.count,
        nproc_per_node=ranks,
        run_id=job.name,
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint=place.endpoint,
        rdzv_configs={} if alone else {"rank": place.index, "timeout": 300},
        local_addr="127.0.0.1" if alone else None,
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
