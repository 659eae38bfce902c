"""Pipelines by `torch.distributed.pipelining`: which stages a rank has, and the schedule over them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

SCHEDULES: Mapping[str, Any] = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "interleaved-zb": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
}
ZIGZAG = "zb-v"  # goes down the ranks and up again; the others go round


def hosted(schedule: str, split: Sequence[float], rank: int, size: int) -> dict[int, range]:
    """The half layers of the stages that a pipeline rank has, by stage; `split` are the layers of each."""
    halves = [int(2 * layers) for layers in split]
    ends = list(accumulate(halves))
    hosts = [*range(size), *reversed(range(size))] if schedule == ZIGZAG else [s % size for s in range(len(split))]
    return {s: range(ends[s] - halves[s], ends[s]) for s, host in enumerate(hosts) if host == rank}


class Pipeline:
    """One rank's stages under a schedule."""

    def __init__(
        self,
        schedule: str,
        stages: Mapping[int, nn.Module],
        count: int,
        microbatches: int,
        shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        group: dist.ProcessGroup,
        loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        """`count` is the number of all stages; `shapes` are those of one microbatch's tokens, activations and logits.

        `loss_of` gives the microbatch's part of the mean, so that gradients only add up.
        """
        tokens, hidden, logits = shapes
        self.first, self.last = 0 in stages, count - 1 in stages
        made = [
            PipelineStage(
                module,
                stage,
                count,
                torch.device("cpu"),
                # Without these a forward and backward finds them out, which DistributedDataParallel does not stand.
                input_args=_meta(hidden) if stage else _meta(tokens, torch.int64),
                output_args=_meta(hidden if stage < count - 1 else logits),
                group=group,
            )
            for stage, module in stages.items()
        ]
        single = SCHEDULES[schedule] is Schedule1F1B
        self.schedule = SCHEDULES[schedule](
            made[0] if single else made, microbatches, loss_fn=loss_of, scale_grads=False
        )

    def run(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Forward and backward of all microbatches, [b, s] each; the loss, or 0 where the last stage is elsewhere."""
        losses: list[torch.Tensor] = []
        given = (tokens,) if self.first else ()
        self.schedule.step(*given, target=targets if self.last else None, losses=losses, return_outputs=False)
        return torch.stack(losses).sum().detach() if losses else torch.zeros(())


def _meta(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a stage takes or gives; activations have a gradient."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
