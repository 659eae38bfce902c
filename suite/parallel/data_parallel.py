"""Gradient reduction over data-parallel ranks, started while the backward pass still runs.

A stage's gradients are complete when its last backward of the iteration adds to them. Each bucket is summed as
soon as that backward has filled it. Gradients are sums over the global batch (the loss is divided by its tokens),
so the reduction is a plain sum. With sharded optimizer state (ZeRO-1, Rajbhandari et al. 2020) each rank gets the
sum of its own piece of the bucket only, and the updated pieces are gathered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist

from suite.parallel.flat_buffer import Bucket, FlatBuffer
from suite.parallel.parameters import ModelParameter
from suite.parallel.topology import Group


class Reduction(NamedTuple):
    """One bucket's reduction: its stage, bytes, and when it was started and found done (host's monotonic clock)."""

    stage: int
    bytes: int
    start: float
    end: float


@dataclass
class _Pending:
    """A bucket on its way: what is still missing, and the reduction once it has started."""

    flat: FlatBuffer
    bucket: Bucket
    piece: slice | None  # this rank's own part of the bucket, where the optimizer is sharded
    missing: int = 0
    work: dist.Work | None = None
    share: torch.Tensor | None = None
    started: float = 0.0

    def start(self, group: Group) -> None:
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
    """Sums every stage's gradients over the data-parallel group, bucket by bucket."""

    def __init__(self, buffers: Mapping[int, list[FlatBuffer]], group: Group, sharded: bool = False) -> None:
        self.group = group
        self.sharded = sharded and group.size > 1
        self.pending: dict[int, list[_Pending]] = {}
        self.armed: dict[ModelParameter, _Pending] = {}
        self.reductions: list[Reduction] = []  # of the last iteration
        if group.size == 1:
            return
        for stage, flats in buffers.items():
            self.pending[stage] = [
                _Pending(flat, bucket, flat.owned[index] if self.sharded else None)
                for flat in flats
                for index, bucket in enumerate(flat.buckets)
            ]
            for pending in self.pending[stage]:
                for parameter in pending.bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)

    def final_backward(self, stage: int) -> None:
        """The backward that starts now is the stage's last: reduce its buckets as they fill."""
        for pending in self.pending.get(stage, ()):
            pending.missing = len(pending.bucket.parameters)
            for parameter in pending.bucket.parameters:
                self.armed[parameter] = pending

    def _accumulated(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, ModelParameter)
        pending = self.armed.pop(parameter, None)
        if pending is None:
            return
        pending.missing -= 1
        if not pending.missing:
            pending.start(self.group)

    def finish(self) -> float:
        """Wait for every bucket; returns the seconds spent waiting.

        Raises:
            RuntimeError: a gradient never came, so its bucket was not reduced.
        """
        started = perf_counter()
        if self.armed:
            names = ", ".join(sorted(parameter.spec.name for parameter in self.armed))
            raise RuntimeError(f"no gradient came for {names}")
        self.reductions = []
        for stage, buckets in self.pending.items():
            for pending in buckets:
                pending.finish()
                size = (pending.bucket.place.stop - pending.bucket.place.start) * pending.flat.gradients.itemsize
                self.reductions.append(Reduction(stage, size, pending.started, perf_counter()))
        return perf_counter() - started

    def gather_values(self) -> None:
        """With a sharded optimizer, put the updated pieces of all ranks together."""
        if not self.sharded:
            return
        for stage in self.pending.values():
            for pending in stage:
                values = pending.flat.values
                values[pending.bucket.place] = self.group.all_gather(values[pending.piece])
