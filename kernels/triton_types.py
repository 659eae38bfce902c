"""What every Triton kernel here agrees on: numbers are widened as they are read, blocks are powers of two."""

import torch
import triton
import triton.language as tl

PROGRAMS = 256  # that share the rows of a backward pass which also sums over them


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """The type that a kernel computes in."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def block_of(width: int) -> int:
    """The block that holds a row."""
    return triton.next_power_of_2(width)


def warps_for(block: int) -> int:
    """Warps of a program that works on so many elements at a time."""
    return min(16, max(1, block // 512))


def contiguous(**tensors: torch.Tensor | None) -> None:
    """Refuse what the kernels, which count in elements from the first, would read wrongly.

    Raises:
        ValueError: a tensor is not contiguous.
    """
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            strides = tuple(tensor.stride())
            raise ValueError(f"{name}: strides {strides} are not contiguous; {name}.contiguous() would work")
