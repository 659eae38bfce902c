"""What the processes of a launch printed, and how far it has come: for people, from what is on disk."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from suite.launch.job import Job, JobFolder
from suite.launch.slurm.submission import Submission

_LOOK_SECONDS = 0.5
_LAST_LINES = 20


@dataclass
class Logs:
    """The printed lines of one launch, each with who printed it."""

    job: Job
    folder: JobFolder
    _read: dict[Path, int] = field(default_factory=dict)  # bytes

    def streams(self) -> Iterator[tuple[str, Path]]:
        """Who prints into which file: the supervisor of each node, each rank, and the launch's progress."""
        note = Submission.of(self.folder)
        nodes = 1 if note is None else note.nodes
        for node, file in _supervisors(self.folder, note):
            yield f"node {node}", file
        ranks = self.job.point.parallel.ranks // nodes
        for node in range(nodes):
            for file in sorted((self.folder.logs / f"node-{node}").glob("*/attempt_0/*/std*.log")):
                yield f"rank {node * ranks + int(file.parent.name)}", file
        yield "progress", self.folder.progress_file

    def lines(self, rank: int | None) -> Iterator[str]:
        """Every line that was not there before; of one rank alone where it is given."""
        for who, file in self.streams():
            if rank is not None and who not in (f"rank {rank}", "progress"):
                continue
            for line in self._new(file):
                yield f"{who} | {_iteration(line) if who == 'progress' else line}"

    def follow(self, rank: int | None) -> Iterator[str]:
        """The lines as they come, until the launch has its record."""
        finished = False
        while True:
            yield from self.lines(rank)
            if finished:
                return
            finished = self.folder.finished  # what was printed before that is read once more
            time.sleep(_LOOK_SECONDS)

    def _new(self, file: Path) -> list[str]:
        try:
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                data = opened.read()
        except OSError:
            return []
        whole = len(data) if self.folder.finished else data.rfind(b"\n") + 1
        self._read[file] = self._read.get(file, 0) + whole
        return data[:whole].decode(errors="replace").splitlines()


def _iteration(line: str) -> str:
    one = json.loads(line)
    loss = "" if one["loss"] is None else f", loss {one['loss']:.4f}"
    return f"iteration {one['iteration']}: {one['seconds']:.4f} s{loss}"


def _supervisors(folder: JobFolder, note: Submission | None) -> list[tuple[int, Path]]:
    """The log of each node's supervisor, by node."""
    if note is not None:
        return note.node_logs()
    return [(0, file) for file in folder.submitit.glob("*_log.out")]


def last_words(folder: JobFolder) -> str:
    """The last that is known of a launch that ended without a record: of the rank that failed first, or the nodes."""
    if errors := folder.errors():
        first = errors[0]
        return f"rank {first['rank']}: {first['kind']}: {first['message']}\n\n{first['traceback']}".strip()
    parts = []
    for node, file in _supervisors(folder, Submission.of(folder)):
        lines = file.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        if lines:
            parts.append("\n".join([f"the last that node {node} printed:", *lines]))
    return "\n".join(parts)
