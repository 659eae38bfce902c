"""What a job runs on each of its nodes: the launches one after another, and what to do when SLURM wants it to end.

The first node writes the records. It is warned by SIGUSR2 before the time limit and before a preemption, and told to
end by SIGTERM; of what SIGKILL ends, whoever looks at the sweep next makes the record (`settle`).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any, Never

from submitit import JobEnvironment

from suite.launch.claim import next_free
from suite.launch.job import Job, JobFolder, now
from suite.launch.node import ALONE, Interrupted, NodePlace, node_record
from suite.launch.slurm.submission import Submission
from suite.launch.slurm.submit import Member, RefusedError, submit
from suite.measure.provenance import host_environment
from suite.records.schema import Record, Status

MEET_SECONDS = 300.0  # in which every node of a job has started its task
_EARLY_SECONDS = 90.0  # by which SLURM's warning may come too early
_LOOK_SECONDS = 0.2
_TOUCH_SECONDS = 5.0


class _Signals:
    """Raises Interrupted in the main thread, but only while ranks run."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.open = False
        self._install()

    def _install(self) -> None:
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if self.open:
            self._interrupt()

    def _interrupt(self) -> Never:
        self.open = False
        assert self.number is not None
        raise Interrupted(self.number)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise here what comes now, or has come before."""
        self.open = True
        if self.number is not None:
            self._interrupt()
        try:
            yield
        finally:
            self.open = False
            self._install()  # the supervisor's library has handlers of its own


def run_task(member: Member) -> None:
    """Run a job's launches on this node. Returns normally whatever becomes of them: the records say it."""
    begun, signals, task = time.monotonic(), _Signals(), _Task(member)
    for position, job in enumerate(member.jobs):
        if job.record_file.exists():  # from before the job started again
            continue
        try:
            with signals.raised():
                record = task.launch(job)
        except Interrupted as wish:
            if task.first:
                task.end(member.jobs[position:], wish.number, time.monotonic() - begun)
            return
        if task.first:
            job.write(record)


class _Task:
    """This node's part of the job."""

    def __init__(self, member: Member) -> None:
        self.member = member
        environment = JobEnvironment()
        self.job_id = environment.job_id
        self.hosts = environment.hostnames
        self.node = int(os.environ.get("SLURM_NODEID", 0))
        self.attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))

    @property
    def first(self) -> bool:
        """Whether this node writes the records."""
        return self.node == 0

    def launch(self, job: Job) -> Record:
        """Run one launch with the other nodes; its record."""
        folder = JobFolder(job.folder)
        if self.first:
            if (note := Submission.of(folder)) is not None:
                note.note_job_id(folder, self.job_id)
            if self.attempt > self.member.slurm.retries:
                why = f"SLURM started the job {self.attempt + 1} times; {self._allowed()}"
                return self._record(job, "preempted", why)
            if (folder.path / "attempt.json").exists():
                folder.begin_again(self.attempt)
            self._note_attempt(folder)
        try:
            place = self._meet(folder)
        except TimeoutError as error:
            return self._record(job, "failed", str(error))
        return node_record(job, place)

    def _note_attempt(self, folder: JobFolder) -> None:
        note = {"job_id": self.job_id, "attempt": self.attempt, "hosts": self.hosts, "started": now()}
        folder.write("attempt.json", json.dumps(note, indent=1))

    def _meet(self, folder: JobFolder) -> NodePlace:
        """Wait for the other nodes, and agree on where the ranks meet. Raises TimeoutError naming who is missing."""
        environment = {
            "job_id": self.job_id,
            "hosts": self.hosts,
            "attempt": self.attempt,
            "minutes": self.member.shape.minutes,
            "partition": os.environ.get("SLURM_JOB_PARTITION"),
        }
        shape = self.member.shape
        if shape.nodes == 1:
            return replace(ALONE, environment=environment)
        table = folder.path / f"meeting-{self.job_id}-{self.attempt}"
        table.mkdir(exist_ok=True)
        endpoint = table / "endpoint"
        if self.first:
            with socket.socket() as probe:
                probe.bind(("", 0))
                port = probe.getsockname()[1]
            draft = table / ".endpoint"
            draft.write_text(f"{self.hosts[0]}:{port}")
            draft.replace(endpoint)
        wanted = [endpoint] if not self.first else [table / f"node-{node}" for node in range(1, shape.nodes)]
        deadline, touched = time.monotonic() + MEET_SECONDS, 0.0
        while missing := [file for file in wanted if not file.exists()]:
            if time.monotonic() > deadline:
                names = ", ".join(f"{self.hosts[self._number(file.name)]} ({file.name})" for file in missing)
                raise TimeoutError(f"after {MEET_SECONDS:g} s these nodes of the job have not started: {names}")
            if time.monotonic() - touched > _TOUCH_SECONDS:  # a new file makes a network file system look again
                (table / f"node-{self.node}").write_text(socket.gethostname())
                touched = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        (table / f"node-{self.node}").write_text(socket.gethostname())
        return NodePlace(self.node, shape.nodes, endpoint.read_text(), environment)

    def _number(self, name: str) -> int:
        return 0 if name == "endpoint" else int(name.removeprefix("node-"))

    def end(self, left: Sequence[Job], number: int, seconds: float) -> None:
        """Do what the signal asks for; `left` are the running launch and those that have not begun."""
        limit = self.member.shape.minutes * 60
        _say(f"{signal.Signals(number).name} after {seconds:.0f} s, with a limit of {limit} s")
        if number != signal.SIGUSR2:
            self._note_wish(left[0], signal.Signals(number).name)
        elif seconds >= limit - self.member.warning_seconds - _EARLY_SECONDS:
            self._time_is_up(left)
        else:
            self._preempted(left)

    def _note_wish(self, job: Job, name: str) -> None:
        """For whoever looks when SLURM has forgotten the job."""
        note = {"signal": name, "time": now(), "job_id": self.job_id}
        JobFolder(job.folder).write("wish.json", json.dumps(note))

    def _allowed(self) -> str:
        return f"the profile of cluster {self.member.cluster} allows slurm.retries={self.member.slurm.retries}"

    def _time_is_up(self, left: Sequence[Job]) -> None:
        """Submit what is left once more with twice the time, as long as that is allowed, and record the timeout."""
        member = self.member
        longer = min(2 * member.shape.minutes, member.slurm.max_minutes or 2 * member.shape.minutes)
        what = f"the launch hit the job's time limit of {member.shape.minutes} min"
        if member.timeouts >= member.slurm.retries:
            why = f"{what}, for the {member.timeouts + 1}th time; {self._allowed()}"
            again = left[1:]
        elif longer <= member.shape.minutes and len(member.jobs) == 1:
            why = f"{what}, which is slurm.max_minutes of cluster {member.cluster}"
            again = left[1:]
        else:
            why = what
            again = [next_free(left[0]), *left[1:]]
        if again:
            limit = replace(member.shape, minutes=longer)
            timeouts = member.timeouts + (len(again) == len(left))
            try:
                (done,) = submit([replace(member, jobs=tuple(again), shape=limit, timeouts=timeouts)])
                why += f"; submitted again as job {done.job_id} with {longer} min"
            except RefusedError as error:
                why += f"; not submitted again: {error}"
                if len(again) == len(left):
                    JobFolder(again[0].folder).withdraw()
        left[0].write(self._record(left[0], "timeout", why))

    def _preempted(self, left: Sequence[Job]) -> None:
        """Ask to be put back into the queue, as long as that is allowed."""
        if self.attempt >= self.member.slurm.retries:
            record = self._record(left[0], "preempted", f"preempted {self.attempt + 1} times; {self._allowed()}")
            left[0].write(record)
            return
        self._note_wish(left[0], "SIGUSR2")
        done = subprocess.run(
            ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = f"preempted, and SLURM did not requeue it: {done.stderr.strip()}"
            left[0].write(self._record(left[0], "preempted", why))
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:  # the end comes by signal; ending first would make the job a finished one
            time.sleep(1)

    def _record(self, job: Job, status: Status, reason: str) -> Record:
        started = now()
        with suppress(OSError, ValueError):
            started = json.loads((job.folder / "attempt.json").read_text())["started"]
        environment: dict[str, Any] = {**host_environment(), "job_id": self.job_id, "cluster": self.member.cluster}
        return job.record(status, reason, started, environment=environment)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
