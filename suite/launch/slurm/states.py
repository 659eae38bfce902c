"""What SLURM says of jobs: from the controller's memory, and from accounting where it is kept."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from suite.records.schema import Status

_SECONDS = 60  # for an answer
_WAITS = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
_RUNS = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"))
_ENDED: dict[str, tuple[Status, str]] = {
    "COMPLETED": ("failed", "the job ended and left no record"),
    "FAILED": ("failed", "the job failed"),
    "LAUNCH_FAILED": ("failed", "the job could not be started on its nodes"),
    "RECONFIG_FAIL": ("failed", "a node could not be configured for the job"),
    "NODE_FAIL": ("failed", "a node of the job failed"),
    "BOOT_FAIL": ("failed", "a node of the job could not be booted"),
    "OUT_OF_MEMORY": ("oom", "the job ran out of host memory and was ended by the kernel"),
    "TIMEOUT": ("timeout", "the job hit its time limit"),
    "DEADLINE": ("timeout", "the job hit its deadline"),
    "PREEMPTED": ("preempted", "the job was preempted and SLURM did not put it back into the queue"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
    "REVOKED": ("cancelled", "the job was revoked: another cluster of the federation took it"),
}
VANISHED: tuple[Status, str] = ("failed", "the job vanished: SLURM knows it no longer, and it left no record")
UNKNOWN_ID = "Invalid job id"


class CannotAskError(Exception):
    """SLURM gave no answer: its tools are not on this host, or its controller does not answer."""


@dataclass(frozen=True)
class State:
    """A job's state by SLURM's word, why it waits, and how it ended."""

    word: str
    reason: str = ""  # why a pending job waits
    nodes: str = ""
    exit_code: str = ""

    @property
    def in_flight(self) -> bool:
        """Whether the job may yet run, or runs."""
        return self.word in _WAITS | _RUNS

    @property
    def waits(self) -> bool:
        """Whether it may yet run, and does not."""
        return self.word in _WAITS

    @property
    def held(self) -> bool:
        """Whether it waits for a person."""
        return self.word in ("REQUEUE_HOLD", "SPECIAL_EXIT") or "Held" in self.reason

    def ending(self) -> tuple[Status, str]:
        """The status of a record and its reason, of a job that has ended and left none."""
        status, reason = _ENDED.get(self.word, ("failed", "the job ended"))
        details = [f"SLURM says {self.word}"]
        if self.exit_code not in ("", "0:0"):
            details.append(f"exit code {self.exit_code}")
        if self.nodes not in ("", "None assigned"):
            details.append(f"nodes {self.nodes}")
        return status, f"{reason} ({', '.join(details)})"


def ask(ids: Sequence[str]) -> dict[str, State]:
    """The state of each job that SLURM knows, by id such as 12 or 12_3. Raises CannotAskError."""
    if not ids:
        return {}
    found = read_squeue(_squeue(["-j", ",".join(ids)]))
    missing = [job for job in ids if job not in found]
    if missing:
        found |= read_sacct(_sacct(["-j", ",".join(missing)]))
    return {job: found[job] for job in ids if job in found}


def ids_by_name(name: str) -> dict[str, State]:
    """The jobs that were submitted under a name, of whose ids nobody was told."""
    return read_squeue(_squeue(["-n", name])) or read_sacct(_sacct(["--name", name]))


def run_tool(words: Sequence[str]) -> str:
    """What one of SLURM's tools prints. Raises CannotAskError with its own complaint."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise CannotAskError(f"{words[0]} is not on this host") from None
    except subprocess.TimeoutExpired:
        raise CannotAskError(f"{words[0]} did not answer in {_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise CannotAskError(f"{words[0]} failed: {said}")
    return done.stdout


def _squeue(chosen: list[str]) -> str:
    try:
        return run_tool(["squeue", "-h", "-r", "-a", "-t", "all", "-o", "%i|%T|%r|%N", *chosen])
    except CannotAskError as error:
        if UNKNOWN_ID in str(error):
            return ""
        raise


def _sacct(chosen: list[str]) -> str:
    """What accounting says; nothing where none is kept, which is no fault."""
    try:
        words = ["sacct", "-n", "-X", "-P", "-S", "now-60days", "-o", "JobID,State,NodeList,ExitCode"]
        return run_tool([*words, *chosen])
    except CannotAskError:
        return ""


def read_squeue(text: str) -> dict[str, State]:
    """States from the lines that `squeue` printed, by job id."""
    found = {}
    for line in text.splitlines():
        job, word, reason, nodes = line.split("|", 3)
        found[job] = State(word, "" if reason == "None" else reason, nodes)
    return found


def read_sacct(text: str) -> dict[str, State]:
    """States from the lines that `sacct` printed, by job id; of a job that started again, the last one counts."""
    found = {}
    for line in text.splitlines():
        job, words, nodes, exit_code = line.split("|", 3)
        for one in _members(job):
            found[one] = State(words.split()[0], "", nodes, exit_code)  # CANCELLED by 0
    return found


def _members(job: str) -> list[str]:
    """The ids that a job id of sacct stands for: members of an array that wait are one row, 12_[3-5,7%2]."""
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if match is None:
        return [job]
    ids = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        ids += [f"{match[1]}_{index}" for index in range(int(first), int(last or first) + 1)]
    return ids
