"""Bytes that an operator moves to and from memory: fused, and as its reference does it, one step after another.

    python -m suite.kernels.traffic

prints the table of README.md. The reference's bytes are counted from the operators that torch runs: each reads its
operands and writes its result. Views move nothing; a cache that holds an operand is left out.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.kernels.cases import Case, Sizes, cases
from suite.kernels.registry import implementation

_VIEWS = ("view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "alias", "detach", "t")
_FREE = ("empty", "empty_like", "new_empty", "as_strided", "_unsafe_view", "split", "unbind")

COUNTED = Sizes(s=2048, b=4, h=4096, heads=32, vocabulary=51200)  # the table's, in bf16
DEVICES = {  # bytes/s and dense bf16 FLOP/s, of NVIDIA's data sheets
    "A100 80 GB": (2.039e12, 312e12),
    "H100 SXM": (3.35e12, 989e12),
    "H200": (4.8e12, 989e12),
}


class Counted(TorchDispatchMode):
    """Counts the bytes that torch's operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in (*_VIEWS, *_FREE):
            moved = tree_leaves((args, kwargs or {}, result))
            self.bytes += sum(_bytes(tensor) for tensor in moved if isinstance(tensor, torch.Tensor))
        return result


def _bytes(tensor: torch.Tensor) -> int:
    """Of what lies in memory: a dimension that is only repeated counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.itemsize


def unfused_bytes(case: Case) -> tuple[int, int]:
    """Bytes that the reference moves, forward and backward."""
    with Counted() as ahead:
        results = case.run(implementation(case.operator, "reference"))
    with Counted() as behind:
        case.back(results)
    return ahead.bytes, behind.bytes


def table() -> list[str]:
    """The lines of README.md's table."""
    lines = [
        "| operator | FLOPs a byte | MB fused, forward + backward | MB one by one | times as many | "
        + " | ".join(f"ms on {name}" for name in DEVICES)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(DEVICES),
    ]
    for case in cases(COUNTED, torch.bfloat16, torch.device("meta")):
        ahead, behind, cost = *unfused_bytes(case), case.cost
        fused, moved = cost.bytes + cost.bytes_backward, ahead + behind
        flops = cost.flops + cost.flops_backward
        times = " | ".join(f"{1e3 * max(fused / rate, flops / peak):.2f}" for rate, peak in DEVICES.values())
        name = f"{case.operator}, dropout" if case.dropout else case.operator
        megabytes = f"{cost.bytes / 1e6:.0f} + {cost.bytes_backward / 1e6:.0f}" if case.leaves else f"{fused / 1e6:.0f}"
        lines.append(
            f"| `{name}` | {flops / fused:.1f} | {megabytes} | {moved / 1e6:.0f} | {moved / fused:.1f} | {times} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
