"""Gradient reduction over data-parallel ranks, started while the backward pass still runs.

A stage's gradients are complete when its last backward of the iteration adds to them. Each bucket is summed as
soon as that backward has filled it. Gradients are sums over the global batch (the loss is divided by its tokens),
so the reduction is a plain sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

import torch
import torch.distributed as dist

from suite.parallel.flat_buffer import FlatBuffer
from suite.parallel.parameters import ModelParameter
from suite.parallel.topology import Group

BUCKET_BYTES = 8 << 20


@dataclass
class _Bucket:
    parameters: list[ModelParameter]
    gradients: torch.Tensor
    missing: int = 0
    work: dist.Work | None = field(default=None)


class GradientReducer:
    """Sums every stage's gradients over the data-parallel group, bucket by bucket."""

    def __init__(self, buffers: Mapping[int, list[FlatBuffer]], group: Group) -> None:
        self.group = group
        self.buckets: dict[int, list[_Bucket]] = {}
        self.armed: dict[ModelParameter, _Bucket] = {}
        if group.size == 1:
            return
        for stage, flats in buffers.items():
            self.buckets[stage] = [
                _Bucket(members, gradients)
                for flat in flats
                for members, gradients in flat.buckets(BUCKET_BYTES // flat.gradients.element_size())
            ]
            for bucket in self.buckets[stage]:
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)

    def final_backward(self, stage: int) -> None:
        """The backward that starts now is the stage's last: reduce its buckets as they fill."""
        for bucket in self.buckets.get(stage, ()):
            bucket.missing = len(bucket.parameters)
            for parameter in bucket.parameters:
                self.armed[parameter] = bucket

    def _accumulated(self, parameter: torch.Tensor) -> None:
        bucket = self.armed.pop(parameter, None)  # type: ignore[call-overload]
        if bucket is None:
            return
        bucket.missing -= 1
        if not bucket.missing:
            bucket.work = self.group.all_reduce_async(bucket.gradients)

    def finish(self) -> float:
        """Wait for every bucket; returns the seconds spent waiting.

        Raises:
            RuntimeError: a gradient never came, so its bucket was not reduced.
        """
        started = perf_counter()
        if self.armed:
            names = ", ".join(sorted(parameter.spec.name for parameter in self.armed))
            raise RuntimeError(f"no gradient came for {names}")
        for buckets in self.buckets.values():
            for bucket in buckets:
                if bucket.work is None:
                    raise RuntimeError("a gradient bucket was never filled: its stage had no final backward")
                bucket.work.wait()
                bucket.work = None
        return perf_counter() - started
