"""Fully sharded data parallelism (ZeRO-3), the paper's baseline in table 2, by torch's `fully_shard`.

Every data rank keeps a share of each parameter, its gradient and its moments. A layer's parameters are gathered
before its forward and before its backward pass, and its gradients are reduced and split after it. Where the backward
pass begins with a recomputation, one gathering serves both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo  # by `fully_shard` when it is first called, which would be in every rank
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from suite.parallel.parameters import Described, ModelParameter, ParameterSpec
from suite.parallel.topology import Group


class ShardedParameter:
    """This rank's share of one parameter, as what the optimizer and the norm ask of a flat buffer."""

    def __init__(self, parameter: nn.Parameter, spec: ParameterSpec, group: Group) -> None:
        assert isinstance(parameter.data, DTensor)
        self.spec, self.shared = spec, False
        self.group, self.sharded = group, True
        self.values = parameter.data.to_local().view(-1)
        self.gradients = torch.zeros_like(self.values)
        self.dtype = self.values.dtype
        self.owned = [slice(0, self.values.numel())]
        shape = parameter.data.to_local().shape
        gradient = self.gradients.view(shape)
        parameter.grad = DTensor.from_local(  # into which fully_shard adds what it has reduced
            gradient,
            parameter.data.device_mesh,
            parameter.data.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.spec.decay

    def owned_gradients(self, wanted: Callable[[Described], bool]) -> list[torch.Tensor]:
        """This rank's share of the gradient, if the parameter is wanted."""
        return [self.gradients] if wanted(self) and self.gradients.numel() else []


class _Counted:
    """One of `fully_shard`'s collectives, with the bytes that this rank hands to it counted as the group's.

    It is what torch's abstract `Comm` asks for, which has no public name to derive from.
    """

    def __init__(self, data: Group, collective: Callable[..., dist.Work | None]) -> None:
        self.data, self.collective = data, collective

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The memory that the collective works on."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *arguments: Any, **options: Any
    ) -> dist.Work | None:
        self.data.traffic.bytes += input_tensor.nbytes
        return self.collective(output_tensor, input_tensor, *arguments, **options)


def shard_stage(
    stage: nn.Module, layers: nn.ModuleList, data: Group, precision: torch.dtype, recomputed: bool
) -> list[ShardedParameter]:
    """Shard a stage that was built in fp32 (or fp64) over the data ranks; it computes in `precision`.

    Gradients are summed, not averaged, over the data ranks, and in the format that they are kept in. `recomputed`: the
    layers run twice, first without a graph.
    """
    specs = {name: p.spec for name, p in stage.named_parameters() if isinstance(p, ModelParameter)}
    first = next(stage.parameters())
    assert data.handle is not None
    mesh = DeviceMesh.from_group(data.handle, first.device.type)
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=first.dtype)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        if recomputed:
            layer.register_forward_pre_hook(_keep_for_the_backward_pass)
    fully_shard(stage, mesh=mesh, mp_policy=policy)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
            module.set_custom_all_gather(_Counted(data, dist.all_gather_into_tensor))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_Counted(data, dist.reduce_scatter_tensor))  # type: ignore[arg-type]
    return [ShardedParameter(parameter, specs[name], data) for name, parameter in stage.named_parameters()]


def _keep_for_the_backward_pass(layer: nn.Module, _: Any) -> None:
    """Let a layer's gathered parameters go after the forward pass, and keep them after the recomputation."""
    assert isinstance(layer, FSDPModule)
    layer.set_reshard_after_forward(not torch.is_grad_enabled(), recurse=False)
