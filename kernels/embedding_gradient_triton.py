"""The embedding's gradient added row by row, the rows of one token one after another."""

import torch
import triton
import triton.language as tl

from suite.kernels.triton_types import accumulator, block_of, contiguous, warps_for

BLOCK = 1024  # columns of a row that a program works on


@triton.jit
def add_kernel(main_ptr, sorted_ptr, order_ptr, rows_ptr, count, width, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one token's row: only the first place of a token in the sorted order adds, for all of its places."""
    place = tl.program_id(0)
    token = tl.load(sorted_ptr + place)
    before = tl.load(sorted_ptr + place - 1, mask=place > 0, other=-1)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    if token != before:
        target = main_ptr + token * width + columns
        total = tl.load(target, mask=inside, other=0.0).to(ACC)
        following = token
        while following == token:
            row = tl.load(order_ptr + place) * width
            total += tl.load(rows_ptr + row + columns, mask=inside, other=0.0).to(ACC)
            place += 1
            following = tl.load(sorted_ptr + place, mask=place < count, other=-1)
        tl.store(target, total, mask=inside)


def add_rows(main: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> None:
    """main[indices[i]] += rows[i]; main [V, h], rows [..., h]."""
    contiguous(main=main)
    ordered, order = torch.sort(indices.flatten(), stable=True)
    width = main.shape[-1]
    block = min(BLOCK, block_of(width))
    add_kernel[len(order), triton.cdiv(width, block)](
        main,
        ordered,
        order,
        rows.contiguous(),
        len(order),
        width,
        ACC=accumulator(main.dtype),
        BLOCK=block,
        num_warps=warps_for(block),
    )
