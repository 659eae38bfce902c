"""The watchdog: a rank that gets no further ends the point, with the state of every rank of its host.

Every rank notes what it is at on a board that its host's ranks share. A thread in each rank looks at the rank's own
note; if it is too old, the thread reads the whole board and ends the process, and the supervisor ends the others.
The front looks at the board too, in case that all who should end the launch are stopped themselves.
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from suite.experiment.point import Parallel
from suite.measure.notes import PHASES
from suite.pipeline.lowering import Lowered, Op

_NOTE = struct.Struct("qd")  # what a rank is at, and since when (the host's monotonic clock)
Notes = dict[int, tuple[int, float]]
EXIT_STALLED = 86
FRONT_LATER = 30.0  # seconds after the ranks' limit in which they and their supervisor have ended the launch
START_SECONDS = 180.0  # in which a rank joins the others; one forked at a bad moment never does


class Board:
    """One note per rank of a node, in a file that all of them have mapped."""

    def __init__(self, file: Path, rank: int = 0, first: int = 0) -> None:
        """`rank` is whose notes this process makes, `first` the node's first rank."""
        self.rank, self.first = rank, first
        with file.open("r+b") as opened:
            self.memory = mmap.mmap(opened.fileno(), 0)
        self.codes, self.times = memoryview(self.memory).cast("q"), memoryview(self.memory).cast("d")

    @classmethod
    def create(cls, file: Path, ranks: range) -> Self:
        """Make the board before the node's `ranks` start; all are starting up."""
        draft = file.with_suffix(".writing")
        draft.write_bytes(_NOTE.pack(-1, time.monotonic()) * len(ranks))
        draft.replace(file)  # whoever finds it finds it whole
        return cls(file, ranks.start, ranks.start)

    def note(self, code: int) -> None:
        """Note what this rank is at: instruction n of its program as 2n (waiting for its input) or 2n + 1 (carrying it
        out), and phase k of `PHASES` as -1 - k.
        """
        # Whole numbers at once: `pack_into` first clears the note, and the front would read a time of 0.
        place = 2 * (self.rank - self.first)
        self.codes[place], self.times[place + 1] = code, time.monotonic()

    def note_phase(self, phase: str) -> None:
        """Note a phase by its words."""
        self.note(-1 - PHASES.index(phase))

    def read(self) -> Notes:
        """Every rank's note, by rank."""
        return dict(enumerate(_NOTE.iter_unpack(self.memory[:]), self.first))


def describe(code: int, ops: tuple[Op, ...], lowered: Lowered) -> str:
    """A note in words."""
    if code < 0:
        return PHASES[-1 - code]
    op = ops[code // 2]
    if op.action is None:
        return f"to {op.kind} the {op.message}"
    if code % 2 == 0 and op.message:
        return f"{op.action}, waiting for the {op.message}"
    return f"in {op.action}"


def account(notes: Notes, lowered: Lowered, parallel: Parallel, now: float) -> str:
    """What every rank of the node is at and for how long, the one that stopped first before the others."""
    lines = []
    for rank, (code, since) in sorted(notes.items(), key=lambda entry: entry[1][1]):
        ops = lowered.ops[parallel.coordinates(rank)["pipeline"]]
        lines.append(f"rank {rank}: {describe(code, ops, lowered)}, for {now - since:.1f} s")
    return "\n".join(lines)


class Watchdog(threading.Thread):
    """Ends this process when its own note is older than the limit."""

    def __init__(self, board: Board, limit: float, stalled: Callable[[Notes, float], None]) -> None:
        """`stalled` is told the board and the time before the process ends."""
        super().__init__(name="watchdog", daemon=True)
        self.board, self.limit, self.stalled = board, limit, stalled

    def run(self) -> None:
        """Look several times within the limit, at least once a second."""
        while True:
            time.sleep(min(1.0, self.limit / 10))
            notes, now = self.board.read(), time.monotonic()
            code, since = notes[self.board.rank]
            if now - since > (min(self.limit, START_SECONDS) if code == -1 else self.limit):
                self.stalled(notes, now)
                os._exit(EXIT_STALLED)
