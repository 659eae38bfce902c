"""The local backend: one job at a time through submitit's local executor.

Whatever ends, and however it ends, everything below it ends too: the front that started the job, submitit's
controller, the node's task, the ranks.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import submitit

from suite.launch.job import Job, JobFolder
from suite.launch.node import ALONE, run_node
from suite.launch.processes import end_with, end_with_parent
from suite.launch.watchdog import FRONT_LATER, START_SECONDS, Board, account
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove

POLL_SECONDS = 0.1
LIFE_SECONDS = 20.0
LIMIT_MINUTES = 7 * 24 * 60  # the executor needs a limit; a local point has none of its own


class LocalJob:
    """A job: starting it, whether it still runs, and how to end it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder = JobFolder(job.folder)
        self.handle: submitit.Job[Path] | None = None
        self.begun = self.noted = time.monotonic()
        self.board: Board | None = None  # once the supervisor has made it; kept, whatever becomes of the file

    def start(self) -> None:
        """Submit the job. An interrupt at the terminal reaches only the front, which then ends the job."""
        executor = submitit.LocalExecutor(folder=self.folder.submitit)
        executor.update_parameters(timeout_min=LIMIT_MINUTES, tasks_per_node=1, stderr_to_stdout=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the job's processes inherit this
        try:
            self.handle = executor.submit(
                _run_task, job=self.job, front=os.getpid(), devices=os.environ.get("CUDA_VISIBLE_DEVICES")
            )
            self.folder.note_controller(int(self.handle.job_id))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def running(self) -> bool:
        """Whether the job's controller is alive."""
        return self.handle is not None and self.handle.state == "RUNNING"

    def wait(self) -> Iterator[None]:
        """Yield while the job runs, a few times a second, and once when it has ended."""
        while self.running():
            yield
            time.sleep(POLL_SECONDS)
        yield

    def note_life(self) -> None:
        """Tell those on other hosts, a few times a minute, that the launch is under way."""
        if (now := time.monotonic()) - self.noted > LIFE_SECONDS:
            self.folder.note_life()
            self.noted = now

    def stalled(self) -> str | None:
        """Why the launch has to be ended from here, with the account of every rank; None while it need not be.

        Ranks that get no further end the launch themselves, unless they or their supervisor have been stopped.
        """
        point, now = self.job.point, time.monotonic()
        limit = point.measure.stall_seconds
        if self.board is None and self.folder.board().exists():
            self.board = Board(self.folder.board())
        if self.board is None:
            limit = max(limit, START_SECONDS) + FRONT_LATER
            return f"the ranks' supervisor started no rank in {limit:g} s" if now - self.begun > limit else None
        notes = self.board.read()
        if now - max(since for _, since in notes.values()) <= limit + FRONT_LATER:
            return None
        lowered = prove(generate(point.schedule, point.parallel.pipeline, point.microbatches)).lowered
        return (
            f"no rank got further within the limit (measure.stall_seconds={limit:g}), nor did the ranks or their "
            f"supervisor end the launch; the state of every rank:\n{account(notes, lowered, point.parallel, now)}"
        )

    def record_path(self) -> Path | None:
        """Where the node wrote the record; None where it ended without."""
        if self.handle is not None and self.handle.paths.result_pickle.exists():
            with contextlib.suppress(Exception):
                return self.handle.results()[0]
        # The job's folder, and with it what the node answered, may have been deleted.
        return self.job.record_file if self.job.record_file.exists() else None

    def why_no_record(self, lines: int = 20) -> str:
        """What is known of a job that ended without a record: its error, or that it was killed; and its last words."""
        if self.handle is None:
            return "the job was not started"
        paths = self.handle.paths
        words = paths.stdout.read_text(errors="replace").splitlines() if paths.stdout.exists() else []
        how = "ended and left no record (a signal from outside, or the system was out of memory)"
        if words and paths.result_pickle.exists():
            how = f"failed: {words[-1]}"
        return "\n".join([f"the ranks' supervisor {how}", "", "the last it printed:", *words[-lines:]])

    def cancel(self) -> None:
        """End the job: the node's task ends with the controller, and the ranks end with the task."""
        while self.handle is not None and self.running():
            os.kill(int(self.handle.job_id), signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def _run_task(job: Job, front: int, devices: str | None) -> Path:
    """The node's task: end with the controller and with the front, and run the launch on the devices that it has."""
    controller = os.environ["SUBMITIT_LOCAL_JOB_ID"]
    end_with_parent(int(controller))
    end_with(front)
    if devices is None:  # the executor hides them all
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    return run_node(job, replace(ALONE, environment={"job_id": controller}))
