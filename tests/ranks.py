"""Runs a function on several gloo ranks, forked from the test process."""

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # what a backward pass imports, here once instead of in every rank


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 120) -> list[Any]:
    """`function(*arguments)` on ranks 0..size-1 of an initialised process group; returns every rank's value."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arrive = (size, os.path.join(folder, "store"), results, function, arguments)
        processes = [context.Process(target=_rank, args=(rank, *arrive)) for rank in range(size)]
        for process in processes:
            process.start()
        try:
            values: dict[int, Any] = {}
            while len(values) < size:
                rank, ok, value = results.get()
                assert ok, f"rank {rank} failed:\n{value}"
                values[rank] = value
        finally:
            for process in processes:
                process.join(timeout if len(values) == size else 0)
                process.kill()
    return [values[rank] for rank in range(size)]


def _rank(
    rank: int, size: int, store: str, results: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # to look through what the test process made would copy it
    try:
        if size > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=60),
            )
        results.put((rank, True, function(*arguments)))
        if size > 1:
            dist.barrier()
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
    os._exit(0)
