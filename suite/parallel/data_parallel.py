"""Gradient reduction over the ranks that hold copies of a stage, started while the backward pass runs or after it.

They are the data-parallel ranks and, with a bidirectional schedule, those of the stage's other replicas.

A stage's gradients are complete when its last backward of the iteration adds to them. The sum of each bucket is started
as soon as that backward has filled it. What that is worth is the backend's matter: ranks that share a host's memory add
up when they wait for the sum, since only the processor that computes could do it earlier. Gradients are sums over the
global batch (the loss is divided by its tokens), so the reduction is a plain sum. With sharded optimizer state (ZeRO-1,
Rajbhandari et al. 2020) each rank gets the sum of its own piece of a bucket, and the updated pieces are gathered.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from suite.parallel.flat_buffer import Bucket, FlatBuffer
from suite.parallel.parameters import ModelParameter
from suite.parallel.topology import Pending, StageKey


class Reduction(NamedTuple):
    """One bucket's reduction: its stage, bytes, and when it was started and found done (host's monotonic clock)."""

    stage: int
    bytes: int
    start: float
    end: float


@dataclass
class _Pending:
    """A bucket on its way: what is still missing, and the reduction once it has started."""

    stage: int
    flat: FlatBuffer
    bucket: Bucket
    piece: slice | None  # this rank's own part of the bucket, where the optimizer is sharded
    missing: int = 0
    work: Pending | None = None
    share: torch.Tensor | None = None
    started: float = 0.0

    def start(self) -> None:
        group = self.flat.group
        self.started = perf_counter()
        gradients = self.flat.gradients[self.bucket.place]
        if self.piece is None:
            self.work = group.all_reduce_async(gradients)
        else:
            self.share, self.work = group.reduce_scatter_async(gradients)

    def finish(self) -> None:
        if self.work is None:
            raise RuntimeError("a gradient bucket was never filled: its stage had no final backward")
        self.work.wait()
        if self.piece is not None and self.share is not None:
            self.flat.gradients[self.piece].copy_(self.share)
        self.work = self.share = None


class GradientReducer:
    """Sums every stage's gradients over the ranks that hold copies of it, bucket by bucket."""

    def __init__(self, buffers: Mapping[StageKey, list[FlatBuffer]], late: Collection[FlatBuffer] = ()) -> None:
        """`late` are buffers that are reduced when all stages of this rank are done, such as those several add to."""
        self.pending: dict[StageKey, list[_Pending]] = {}
        self.late: list[_Pending] = []
        self.armed: dict[ModelParameter, _Pending] = {}
        self.reductions: list[Reduction] = []  # of the last iteration
        for key, flats in buffers.items():
            self.pending[key] = []
            for flat in flats:
                if flat.group.size == 1:
                    continue
                pieces = flat.owned if flat.sharded else [None] * len(flat.buckets)
                buckets = [_Pending(key[0], flat, *one) for one in zip(flat.buckets, pieces, strict=True)]
                if flat in late:
                    self.late += buckets
                    continue
                self.pending[key] += buckets
                for parameter in flat.parameters:
                    parameter.register_post_accumulate_grad_hook(self.accumulated)

    def final_backward(self, key: StageKey) -> None:
        """The action that starts now is the last to add to the stage's gradients: reduce its buckets as they fill."""
        for pending in self.pending.get(key, ()):
            pending.missing = len(pending.bucket.parameters)
            for parameter in pending.bucket.parameters:
                self.armed[parameter] = pending

    def reduce(self, key: StageKey) -> None:
        """The stage's gradients are complete: reduce its buckets."""
        for pending in self.pending[key]:
            pending.start()

    def accumulated(self, parameter: torch.Tensor) -> None:
        """A gradient has been added to the parameter's."""
        assert isinstance(parameter, ModelParameter)
        pending = self.armed.pop(parameter, None)
        if pending is None:
            return
        pending.missing -= 1
        if not pending.missing:
            pending.start()

    def finish(self) -> float:
        """Wait for every bucket; returns the seconds spent waiting.

        Raises:
            RuntimeError: a gradient never came, so its bucket was not reduced.
        """
        started = perf_counter()
        if self.armed:
            names = ", ".join(sorted(parameter.spec.name for parameter in self.armed))
            raise RuntimeError(f"no gradient came for {names}")
        for pending in self.late:
            pending.start()
        self.reductions = []
        for pending in self._all():
            pending.finish()
            size = (pending.bucket.place.stop - pending.bucket.place.start) * pending.flat.gradients.itemsize
            self.reductions.append(Reduction(pending.stage, size, pending.started, perf_counter()))
        return perf_counter() - started

    def gather_values(self) -> None:
        """With a sharded optimizer, put the updated pieces of all ranks together."""
        for pending in self._all():
            if pending.piece is not None:
                values = pending.flat.values
                values[pending.bucket.place] = pending.flat.group.all_gather(values[pending.piece])

    def _all(self) -> list[_Pending]:
        return [*(pending for buckets in self.pending.values() for pending in buckets), *self.late]
