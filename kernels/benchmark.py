"""Every operator's implementations that are here against plain torch, in pairs, and against a copy of memory.

    python -m suite.kernels.benchmark [--device cpu|cuda] [--precision fp32|bf16|fp16] [--rounds N] [--out FILE]

Rounds go over all implementations, each in another order; a ratio is the median over rounds of the two times of the
same round, so that what disturbs the machine for longer than a round disturbs both. One line an operator,
size and implementation, `auto`'s with a star; `--out` writes them as JSON.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from suite.kernels.cases import Case, Sizes, cases
from suite.kernels.registry import OPERATORS, Device, choose, implementation, problem

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES: dict[Device, tuple[Sizes, ...]] = {
    "cpu": (Sizes(64, 4, 128, 4, 1024), Sizes(128, 2, 256, 4, 8192), Sizes(256, 1, 512, 8, 8192)),
    "cuda": (Sizes(2048, 2, 4096, 32, 51200),),
}
_COPIED: dict[Device, int] = {"cpu": 64 << 20, "cuda": 1 << 30}  # bytes


@dataclass(frozen=True)
class Line:
    """One implementation of one operator at one size. Times are seconds of one call."""

    operator: str
    sizes: str
    precision: str
    implementation: str  # plain: what plain torch does; again: the same once more
    automatic: bool  # whether `auto` takes it
    forward: float
    backward: float
    over_plain: float  # the time of both over that of plain torch
    bytes_per_second: float  # of a fused kernel's bytes
    of_copy: float  # the same over what a copy reaches


def clock(device: Device) -> Callable[[], float]:
    """Seconds when all work handed to the device is done; on a processor those in which this thread had a core."""

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised if device == "cuda" else time.thread_time


def copy_rate(device: Device) -> float:
    """Bytes/s that a large copy reads and writes."""
    source = torch.ones(_COPIED[device] // 4, device=device)
    target, now, rates = torch.empty_like(source), clock(device), []
    for _ in range(8):
        start = now()
        target.copy_(source)
        rates.append(2 * source.nbytes / (now() - start))
    return max(rates)


def measured(case: Case, precision: str, device: Device, rounds: int, least: float, copied: float) -> Iterator[Line]:
    """A case by everything that is here; plain torch twice, which shows how sure a ratio is."""
    names = [name for name in OPERATORS[case.operator] if problem({case.operator: name}, device) is None]
    functions = {
        "plain": case.plain,
        "again": case.plain,
        **{name: implementation(case.operator, name) for name in names},
    }
    now, order, chance = clock(device), list(functions), random.Random(1)
    calls = {name: _calls(case, function, now, least) for name, function in functions.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(rounds):
        chance.shuffle(order)  # what ran before leaves caches and the allocator in a state of its own
        for name in order:
            times[name].append(_timed(case, functions[name], now, calls[name]))
    automatic = choose("auto", device, case.dropout)[case.operator]
    moved = case.cost.bytes + case.cost.bytes_backward
    for name, pairs in times.items():
        both = [sum(pair) / sum(plain) for pair, plain in zip(pairs, times["plain"], strict=True)]
        ahead, behind = (statistics.median(part) for part in zip(*pairs, strict=True))
        rate = moved / (ahead + behind)
        yield Line(
            operator=f"{case.operator}, dropout" if case.dropout else case.operator,
            sizes=str(case.sizes),
            precision=precision,
            implementation=name,
            automatic=name == automatic,
            forward=ahead,
            backward=behind,
            over_plain=statistics.median(both),
            bytes_per_second=rate,
            of_copy=rate / copied,
        )


def _calls(case: Case, function: Callable[..., Any], now: Callable[[], float], least: float) -> int:
    """How many calls take at least so many seconds; the first compiles what has to be."""
    _timed(case, function, now, 1)
    return max(1, round(least / sum(_timed(case, function, now, 1))))


def _timed(case: Case, function: Callable[..., Any], now: Callable[[], float], calls: int) -> tuple[float, float]:
    """Seconds of a call forward and backward; the results of the calls are let go of one by one."""
    start = now()
    results = [case.run(function) for _ in range(calls)]
    middle = now()
    for result in results:
        case.back(result)
    return (middle - start) / calls, (now() - middle) / calls


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=TYPES, default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--smallest", action="store_true", help="the smallest size only")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    copied, lines = copy_rate(asked.device), []
    print(f"a copy moves {copied / 1e9:.1f} GB/s")
    for sizes in SIZES[asked.device][: 1 if asked.smallest else None]:
        for case in cases(sizes, TYPES[asked.precision], torch.device(asked.device)):
            for line in measured(case, asked.precision, asked.device, asked.rounds, 2e-3, copied):
                lines.append(asdict(line))
                said = f"{line.operator:24} {line.sizes:36} {line.implementation:9}{'*' if line.automatic else ' '}"
                times = f"{1e6 * line.forward:9.1f} + {1e6 * line.backward:9.1f} us"
                print(f"{said} {times} {line.over_plain:7.3f} of plain {line.of_copy:7.1%} of a copy", flush=True)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps({"copy_bytes_per_second": copied, "lines": lines}, indent=1))


if __name__ == "__main__":
    main()
