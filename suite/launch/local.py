"""The local backend: one job at a time through submitit's local executor."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import submitit

from suite.launch.job import Job, JobFolder
from suite.launch.node import run_node

POLL_SECONDS = 0.1
LIMIT_MINUTES = 7 * 24 * 60  # the executor needs a limit; a local point has none of its own
END_SECONDS = 10.0


class LocalJob:
    """A submitted job: whether it still runs, and how to end it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder = JobFolder(job.folder)
        executor = submitit.LocalExecutor(folder=self.folder.submitit)
        executor.update_parameters(timeout_min=LIMIT_MINUTES, tasks_per_node=1, stderr_to_stdout=True)
        self.handle: submitit.Job[Path] = executor.submit(run_node, job)
        self.process = int(self.handle.job_id)
        self.folder.note_controller(self.process)

    def running(self) -> bool:
        """Whether the job's controller is alive."""
        return self.handle.state == "RUNNING"

    def wait(self) -> Iterator[None]:
        """Yield while the job runs, a few times a second."""
        while self.running():
            yield
            time.sleep(POLL_SECONDS)

    def record_path(self) -> Path | None:
        """Where the node wrote the record; None where it ended without."""
        paths = self.handle.paths.result_pickle
        if not paths.exists():
            return None
        try:
            return self.handle.results()[0]
        except Exception:
            return None

    def last_words(self, lines: int = 20) -> str:
        """The end of what the node's task printed."""
        try:
            text = self.handle.paths.stdout.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def cancel(self) -> None:
        """End the job: the controller ends the node's task, and the ranks end with it."""
        deadline = time.monotonic() + END_SECONDS
        self.handle.cancel(check=False)
        while self.running():
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                return
            time.sleep(POLL_SECONDS)
