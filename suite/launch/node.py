"""What runs on each node: one submitit task that starts the node's ranks, watches them, and writes the record."""

import logging
import os
import traceback
from pathlib import Path
from typing import Any

from suite.launch.failure import cause
from suite.launch.job import Job, JobFolder, now
from suite.measure.flops import FLOPS_VERSION
from suite.measure.provenance import host_environment
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.records.schema import Record

SHUTDOWN_SECONDS = 3  # ranks take signals as plain processes do; what is left after this is killed


def run_node(job: Job) -> Path:
    """Run the launch and write its record, whatever happened; returns the record's path.

    A signal that asks this process to end is a failure like any other. One that kills it leaves no record here:
    the front sees that, and the ranks end with it.
    """
    started = now()
    try:
        record = _launch(job, started)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        record = job.record("failed", reason, started, environment=_host(job))
    return job.write(record)


def _host(job: Job) -> dict[str, Any]:
    return {**host_environment(), "job_id": os.environ.get("SUBMITIT_LOCAL_JOB_ID")}


def _launch(job: Job, started: str) -> Record:
    """Prove the schedule, run the ranks under torch's elastic agent, and make the record."""
    parallel = job.point.parallel
    lowered = prove(generate(job.point.schedule, parallel.pipeline, job.point.microbatches)).lowered
    _prepare_devices(job)
    # It would log a failed rank, which is in the record, with a formatter that takes seconds to import.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    # Imported only here: the ranks are forked, so that they find all of it imported.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from suite.launch.rank import run_rank
    from suite.launch.watchdog import Board

    # Seconds to import, once here instead of in every rank.
    if job.point.checkpoint.every or job.point.checkpoint.load:
        import suite.training.checkpoint
    if parallel.sharding == "zero3":
        import suite.parallel.fully_sharded  # noqa: F401
    folder = JobFolder(job.folder)
    Board.create(folder.board, parallel.ranks)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=parallel.ranks,
        run_id=job.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder.logs), redirects=Std.ALL),
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    try:
        results = elastic_launch(config, run_rank)(job, lowered, os.getpid())
    except ChildFailedError as error:
        exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        status, reason = cause(folder, exit_codes)
        return job.record(status, reason, started, environment=_host(job))
    fields = results[0]
    fields["environment"] = {**_host(job), **fields["environment"]}
    return job.record("ok", None, started, flops_version=FLOPS_VERSION, **fields)


def _prepare_devices(job: Job) -> None:
    """Undo the submitter's mask of visible devices, and set the threads before torch reads them."""
    os.environ["OMP_NUM_THREADS"] = str(job.threads_per_rank)
    if job.visible_devices is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.visible_devices
