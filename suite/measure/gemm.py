"""The peak of a device without a table entry: the best rate of a sweep of matrix products."""

from time import perf_counter

import torch

SIZES = (384, 768, 1536)
SECONDS_PER_SIZE = 0.2


def measured_peak(dtype: torch.dtype, device: torch.device) -> float:
    """Best FLOP/s of square n x n x n matrix products, 2 n^3 each, over the sizes of the sweep.

    Every rank calls this at the same time, so that what the ranks share (caches, memory, clocks) is shared.
    """
    return max(_best_rate(n, dtype, device) for n in SIZES)


def _best_rate(n: int, dtype: torch.dtype, device: torch.device) -> float:
    a = torch.rand(n, n, dtype=dtype, device=device)
    b = torch.rand(n, n, dtype=dtype, device=device)
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    best, spent = float("inf"), 0.0
    while spent < SECONDS_PER_SIZE:
        start = perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
    return 2 * n**3 / best
