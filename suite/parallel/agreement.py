"""What all ranks must agree on is compared once, at the start: a mismatch would be a hang or a wrong result later."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from suite.parallel.topology import Group


def agree(world: Group, facts: Mapping[str, Any]) -> None:
    """Compare the facts of all ranks.

    Raises:
        RuntimeError: on every rank, if one differs; the message names the fact, both ranks and both values.
    """
    if world.size == 1:
        return
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, dict(facts), group=world.handle)
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise RuntimeError(f"rank {rank} has {name} {theirs.get(name)} and rank 0 has {value}; they must agree")
