"""Ranks that stay: each makes its work once and repeats it whenever it is told to, all at the same time.

The others wait meanwhile, and take no time of the processor.
"""

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@contextlib.contextmanager
def crew(size: int, setup: Callable[..., Callable[[], object]], *arguments: Any) -> Iterator[Callable[[], list[Any]]]:
    """Ranks of one process group, each with `setup(*arguments)`; a function that has all do their work once.

    It returns what each rank's work returned.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(size)]
        processes = [
            context.Process(target=_rank, args=(rank, size, Path(folder) / "store", pipes[rank][1], setup, arguments))
            for rank in range(size)
        ]
        for process in processes:
            process.start()

        def answers() -> list[Any]:
            values = []
            for here, _ in pipes:
                value, failure = here.recv()
                assert failure is None, failure
                values.append(value)
            return values

        def work() -> list[Any]:
            for here, _ in pipes:
                here.send(None)
            return answers()

        try:
            answers()
            yield work
        finally:
            for process in processes:
                process.kill()
                process.join()


def _rank(rank: int, size: int, store: Path, pipe: Any, setup: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        if size > 1:
            method = f"file://{store}"
            dist.init_process_group(
                "gloo", init_method=method, rank=rank, world_size=size, timeout=timedelta(minutes=10)
            )
        work = setup(*arguments)
        value = None
        while True:
            pipe.send((value, None))
            pipe.recv()
            value = work()
    except BaseException:
        pipe.send((None, traceback.format_exc()))
    os._exit(0)
