"""How the nodes of one launch learn that its ranks have ended elsewhere: each leaves a note, and looks for the others'.

Ranks that wait for one that is gone or stopped may wait for as long as the watchdog lets them, or for ever where they
are stopped themselves. So a node whose launch has failed says so, and every other one then ends its ranks.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from suite.launch.job import JobFolder
from suite.launch.processes import alive

LATER_SECONDS = 2.0  # in which ranks notice by themselves that others are gone, and say so
ANSWER_SECONDS = 15.0  # in which every node of a failed launch has said how its ranks ended
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Exits:
    """How a node's ranks ended."""

    codes: dict[int, int]  # by rank; negative for a signal. None of ranks that were ended because of another node
    memory: str | None  # that the node's control group was out of memory, in words
    account: str  # what every rank of the node was at

    @classmethod
    def read(cls, file: Path) -> "Exits | None":
        """What a node has said; None while it has not, or not wholly."""
        with suppress(OSError, json.JSONDecodeError):
            said = json.loads(file.read_text())
            return cls(**{**said, "codes": {int(rank): code for rank, code in said["codes"].items()}})
        return None


class OtherNodes:
    """The other nodes of a launch, as this one sees them."""

    def __init__(self, folder: JobFolder, index: int, hosts: Sequence[str], count: int) -> None:
        """`index` is this node's number of `count`; `hosts` the nodes' names as far as they are known."""
        self.folder, self.index, self.count = folder, index, count
        self.names = [f"node {node}" + (f" ({hosts[node]})" if node < len(hosts) else "") for node in range(count)]
        self.over = threading.Event()
        self.ended: set[int] = set()  # ranks of this node, because another one said that the launch has failed

    @contextmanager
    def watched(self, ranks: Collection[int]) -> Iterator[None]:
        """While `ranks` of this node run: end them soon after another node has said that the launch has failed."""
        if self.count > 1:
            threading.Thread(target=self._watch, args=(ranks,), daemon=True).start()
        try:
            yield
        finally:
            self.over.set()

    def _watch(self, ranks: Collection[int]) -> None:
        while not self._failed_elsewhere():
            if self.over.wait(_LOOK_SECONDS):
                return
        while not self.over.wait(LATER_SECONDS):
            for rank, process in self.folder.processes(ranks).items():
                if alive(process):
                    self.ended.add(rank)
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)  # which ends stopped ones too

    def _failed_elsewhere(self) -> bool:
        others = (self._file(node) for node in range(self.count) if node != self.index)
        return self.folder.finished or any(file.exists() for file in others)

    def _file(self, node: int) -> Path:
        return self.folder.path / "exits" / f"{node}.json"

    def tell(self, exits: Exits) -> None:
        """Say how this node's ranks ended."""
        with suppress(OSError):  # the folder may have been deleted, or the disk be full
            self._file(self.index).write_text(json.dumps(asdict(exits)))

    def ask(self) -> dict[int, Exits]:
        """What the others say, by node, as far as they do in time."""
        heard: dict[int, Exits] = {}
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(heard) < self.count - 1 and time.monotonic() < deadline:
            for node in range(self.count):
                if node not in (self.index, *heard) and (said := Exits.read(self._file(node))) is not None:
                    heard[node] = said
            time.sleep(0.1)
        return heard
