"""An iteration whose computation is waited for instead of done: real engine, real processes, real messages.

So a machine with few cores carries out schedules of many ranks, and what the engine itself costs shows: the iteration
takes what the event simulation predicts, plus that.
"""

import ctypes
import time
from time import perf_counter

import torch

from suite.experiment.pace import costs
from suite.experiment.point import Point
from suite.measure.clock import HostClock
from suite.measure.notes import Notes
from suite.parallel.topology import Topology
from suite.pipeline.lowering import Lowered
from suite.pipeline.program import BACKWARD_KINDS, FORWARD, Action, Schedule
from suite.pipeline.ready_engine import engine_for
from suite.pipeline.timeline import Costs
from suite.training.step import IterationSamples, message_transport, samples_of

_PR_SET_TIMERSLACK = 29


class PacedWorker:
    """Waits for as long as each action is said to take; its messages have the size of real ones."""

    def __init__(self, schedule: Schedule, times: Costs, message: torch.Tensor) -> None:
        self.table, self.message = times.table(schedule), message
        self.last_stage = schedule.virtual_stages - 1
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # the kernel would round waits up by 50 microseconds

    def run(self, action: Action, value: torch.Tensor | None, final: bool) -> torch.Tensor | None:
        """Wait for the action's time; see `suite.pipeline.engine.Worker`."""
        end = perf_counter() + self.table[action.kind, action.stage]
        sends = action.stage < self.last_stage if action.kind == FORWARD else action.stage > 0
        while (left := end - perf_counter()) > 0:
            time.sleep(left)
        return self.message if sends and action.kind in (FORWARD, *BACKWARD_KINDS) else None

    def reduce(self, action: Action) -> None:
        """Gradients are not there to be added up."""


class PacedStep:
    """What an emulated iteration needs on this rank."""

    def __init__(self, point: Point, lowered: Lowered, topology: Topology, notes: Notes) -> None:
        self.topology, self.notes, self.clock = topology, notes, HostClock()
        self.transport = message_transport(point, topology, torch.device("cpu"))
        message = torch.zeros(self.transport.shape, dtype=self.transport.dtype)
        self.worker = PacedWorker(lowered.schedule, costs(point.pace), message)
        self.engine = engine_for(lowered, topology, self.worker, self.transport, self.clock, notes.note)

    def run(self, iteration: int) -> IterationSamples:
        """One iteration; like a real one it ends when every rank has ended."""
        begin = perf_counter()
        self.engine.run()
        self.notes.note_phase("reducing the loss and the gradient norm")
        self.topology.world.all_reduce(torch.zeros(2))
        seconds = perf_counter() - begin
        return samples_of(self.engine, self.clock.seconds(), seconds=seconds)
