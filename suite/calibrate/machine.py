"""The ranks that measure: processes of this machine that do everything alone and all at once."""

import multiprocessing
import os
import statistics
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

from suite.calibrate.samples import Sample
from suite.calibrate.sweep import Sweep

Key = tuple[str, tuple[tuple[str, Any], ...]]  # what, and its sizes
Measured = dict[tuple[Key, int], list[float]]  # by key and ranks at once, seconds of every round

_SECONDS_TO_END = 5.0


def measure(sweep: Sweep, ranks: int, precisions: tuple[str, ...], device: str, threads: int) -> list[Sample]:
    """Start the ranks, have each measure the sweep alone and all of them at once.

    Raises:
        RuntimeError: a rank failed.
    """
    context = multiprocessing.get_context("spawn")
    processes: dict[Any, Any] = {}
    answers: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        try:
            for rank in range(ranks):
                reader, writer = context.Pipe(duplex=False)
                given = (rank, ranks, store, writer, sweep, precisions, device, threads)
                processes[reader] = process = context.Process(target=_rank, args=given, daemon=True)
                process.start()
                writer.close()  # the rank's own remains: when that closes too, the rank has ended
            waiting = set(processes)
            while waiting:
                ready: list[Any] = connection.wait(list(waiting))
                for reader in ready:
                    answers.append(_answer(reader, processes[reader]))
                    waiting.remove(reader)
        finally:
            for process in processes.values():
                process.join(_SECONDS_TO_END if len(answers) == ranks else 0)
                process.kill()
    return _samples(answers)


def _answer(reader: Any, process: Any) -> Measured:
    try:
        answer = reader.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"a rank ended with exit code {process.exitcode} and left no answer") from None
    if isinstance(answer, str):
        raise RuntimeError(f"a rank failed:\n{answer}")
    return answer


def _rank(
    rank: int,
    ranks: int,
    store: str,
    answer: Any,
    sweep: Sweep,
    precisions: tuple[str, ...],
    device: str,
    threads: int,
) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    import torch.distributed as dist

    from suite.parallel.topology import Group

    torch.set_num_threads(threads)
    try:
        here = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
        if device == "cuda":
            torch.cuda.set_device(here)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(minutes=10),
        )
        group = Group(ranks, rank, tuple(range(ranks)), dist.group.WORLD)
        answer.send(_measured(group, sweep, precisions, here))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer.send(traceback.format_exc())


def _measured(group: Any, sweep: Sweep, precisions: tuple[str, ...], device: Any) -> Measured:
    import torch.distributed as dist

    from suite.calibrate.collectives import collectives, hidden_share, messages
    from suite.calibrate.operations import operations
    from suite.parallel.topology import Group, with_memory

    found: Measured = defaultdict(list)
    everything = list(operations(sweep, precisions, device))
    for alone in (True, False):
        for number in range(sweep.rounds + 1):
            dist.barrier()
            if alone and group.index:
                continue
            for operation in everything:
                for part, seconds in operation.run().items():
                    if number:  # the first round warms up
                        key = _key(operation.what, {**operation.sizes, "part": part})
                        found[key, 1 if alone else group.size].append(seconds)
    pair = Group(2, group.index, (0, 1), dist.new_group([0, 1])) if group.size > 2 else group
    if device.type == "cpu":
        shared = with_memory({"all": group, "pair": pair} if group.index < 2 else {"all": group})
        group, pair = shared["all"], shared.get("pair", pair)
    for number in range(sweep.rounds + 1):
        for among in {pair.size: pair, group.size: group}.values():
            dist.barrier()
            for what, sizes, seconds in collectives(sweep, among, device) if group.index < among.size else ():
                if number:
                    found[_key(what, sizes), among.size].append(seconds)
        share = hidden_share(sweep, group, device)
        if number:
            found[_key("hidden", {}), group.size].append(share)
    for sizes, seconds in messages(sweep, group, device):
        if group.index < 2:  # on a GPU, others have only watched
            found[_key("message", sizes), group.size].append(seconds)
    return dict(found)


def _key(what: str, sizes: dict[str, Any]) -> Key:
    return what, tuple(sizes.items())


def _samples(answers: Iterable[Measured]) -> list[Sample]:
    every: Measured = defaultdict(list)
    for answer in answers:
        for key, values in answer.items():
            every[key] += values
    return [_sample(key, together, values) for (key, together), values in every.items()]


def _sample(key: Key, together: int, values: list[float]) -> Sample:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return Sample(key[0], dict(key[1]), statistics.median(values), high - low, together)
