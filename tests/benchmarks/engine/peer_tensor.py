"""Tensor parallelism by `parallelize_module`: linear layers, embedding and logits split over a mesh."""

from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.engine.peer_model import Gpt, loss_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def split_over(gpt: Gpt, mesh: DeviceMesh, sequence: bool) -> None:
    """Split the parameters of some half layers over the mesh, and with `sequence` the activations between them.

    A tied weight is two afterwards. The embedding's rows are the head's outputs, so both are split alike.
    """
    plan: dict[str, ParallelStyle] = {}
    rows = Shard(1) if sequence else Replicate()
    if gpt.embedding is not None:
        plan["embedding.word"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        if sequence:
            plan["embedding"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=rows)
    for name, layer in gpt.layers.items():
        at = f"layers.{name}"
        kinds = (("attention", "qkv", "output", "norm1"), ("mlp", "expand", "contract", "norm2"))
        for part, first, second, norm in (kinds[half] for half in sorted(layer.halves)):
            plan[f"{at}.{part}.{first}"] = ColwiseParallel()
            plan[f"{at}.{part}.{second}"] = RowwiseParallel(output_layouts=rows)
            if sequence:
                plan[f"{at}.{part}"] = PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(Replicate(),))
                plan[f"{at}.{norm}"] = SequenceParallel()
    if gpt.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=rows)
        if sequence:
            plan["final_norm"] = SequenceParallel()
    parallelize_module(gpt, mesh, plan)


def split_loss(mesh: DeviceMesh) -> Any:
    """The mean cross entropy of this rank's share [b, s, V/t] of the logits; to be used within `loss_parallel`."""

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(DTensor.from_local(logits, mesh, [Shard(2)], run_check=False), targets).to_local()

    return loss


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every gradient the placement of its parameter: the embedding's comes whole."""
    for parameter in parameters:
        if isinstance(parameter, DTensor) and parameter.grad.placements != parameter.placements:
            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
