"""The operations of training on one rank, timed alone or while the other ranks of the machine do the same."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from suite.calibrate.sweep import Body, Core, Product, Sweep
from suite.kernels.registry import select
from suite.measure.clock import HostClock
from suite.model.dropout import Dropout
from suite.parallel.topology import Topology
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.training.precision import DTYPES
from suite.training.step import TrainingStep

_DROPOUT = Dropout(rate=0.1, seed=1, iteration=0, sequences=(0,))

Seconds = Callable[[], float]
Timed = dict[str, float]  # seconds by what is timed in one go


class Operation(NamedTuple):
    """Something to measure: what it is, its sizes, and what runs it once and says how long its parts took."""

    what: str
    sizes: dict[str, Any]
    run: Callable[[], Timed]


class CoreClock(HostClock):
    """Seconds in which this thread had a core: what it computes, whoever else the machine works for."""

    def mark(self) -> int:
        """Note this moment; returns its number."""
        self.marks.append(time.thread_time())
        return len(self.marks) - 1


def clock(device: torch.device) -> Seconds:
    """Seconds of computing: of this thread's core, of the host's clock where several threads share the work."""
    if device.type == "cuda":

        def synchronised() -> float:
            torch.cuda.synchronize(device)
            return perf_counter()

        return synchronised
    return time.thread_time if torch.get_num_threads() == 1 else perf_counter


def operations(sweep: Sweep, precisions: tuple[str, ...], device: torch.device) -> Iterator[Operation]:
    """Everything that one rank does by itself; all but products in the first precision."""
    now, least = clock(device), sweep.least_seconds
    for precision in precisions:
        for product in sweep.products:
            yield from _products(product, precision, device, now, least)
    dtype = DTYPES[precisions[0]]
    for elements in sweep.streams:
        one, two, out = (torch.rand(elements, dtype=dtype, device=device) for _ in range(3))
        add = partial(torch.add, one, two, out=out)
        sizes = {"elements": elements, "bytes": 3 * out.nbytes}
        yield Operation("stream", sizes, partial(_repeated, add, now, least))
    for elements in sweep.functions:
        values = torch.randn(elements, dtype=dtype, device=device)
        gelu = partial(torch.nn.functional.gelu, values, approximate="tanh")
        sizes = {"elements": elements, "bytes": 2 * values.nbytes}
        yield Operation("function", sizes, partial(_repeated, gelu, now, least))
        mask = partial(_DROPOUT.hidden, values.view(1, 1, elements), 0, "embedding")
        yield Operation("mask", {**sizes, "bytes": sizes["bytes"] + elements}, partial(_repeated, mask, now, least))
    for core in sweep.cores:
        yield Operation("core", {**core._asdict(), "precision": precisions[0]}, _core(core, dtype, device, now, least))
    for body in sweep.bodies:
        yield Operation("body", {**body._asdict(), "precision": precisions[0]}, _body(body, precisions[0], device, now))


def _repeated(call: Callable[[], Any], now: Seconds, least: float) -> Timed:
    """Mean seconds of a call, repeated until they last; the first is not timed."""
    call()
    calls, spent = 0, 0.0
    while spent < least:
        start = now()
        for _ in range(1 + calls):
            call()
        spent += now() - start
        calls += 1 + calls
    return {"forward": spent / calls}


def _products(
    product: Product, precision: str, device: torch.device, now: Seconds, least: float
) -> Iterator[Operation]:
    rows, inputs, outputs = product
    dtype = DTYPES[precision]
    x = torch.rand(rows, inputs, dtype=dtype, device=device)
    weight = torch.rand(outputs, inputs, dtype=dtype, device=device)
    gradient = torch.rand(rows, outputs, dtype=dtype, device=device)
    for (m, n, k), call in (
        ((rows, outputs, inputs), partial(torch.nn.functional.linear, x, weight)),
        ((rows, inputs, outputs), partial(torch.matmul, gradient, weight)),
        ((outputs, inputs, rows), partial(torch.matmul, gradient.t(), x)),
    ):
        sizes = {"precision": precision, "rows": m, "columns": n, "depth": k}
        yield Operation("product", sizes, partial(_repeated, call, now, least))


def _core(core: Core, dtype: torch.dtype, device: torch.device, now: Seconds, least: float) -> Callable[[], Timed]:
    attention = select("auto").attention
    dropout = replace(_DROPOUT, rate=core.dropout, sequences=tuple(range(core.sequences)))
    mask = dropout.attention_mask(device, 0, range(core.heads))
    shape = (core.sequences, core.heads, core.seq_length, core.width)
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, dtype=dtype, device=device)

    def run() -> Timed:
        ahead, behind, calls = 0.0, 0.0, 0
        while ahead + behind < least or not calls:
            start = now()
            output = attention(q, k, v, mask)
            middle = now()
            torch.autograd.grad(output, (q, k, v), gradient)
            ahead, behind, calls = ahead + middle - start, behind + now() - middle, calls + 1
        return {"forward": ahead / calls, "backward": behind / calls}

    return run


def _body(body: Body, precision: str, device: torch.device, now: Seconds) -> Callable[[], Timed]:
    point = body.point(precision)
    lowered = prove(generate(point.schedule, 1, point.microbatches)).lowered
    step = TrainingStep(point, lowered, Topology(rank=0), device)
    if now is time.thread_time:
        step.clock = step.engine.clock = CoreClock()
    iterations = iter(range(1 << 30))

    def run() -> Timed:
        start = now()
        samples = step.run(next(iterations))
        whole = now() - start
        busy = samples.busy_by_action
        return {
            "F": busy["F"] / point.microbatches,
            "BW": busy["BW"] / point.microbatches,
            "rest": whole - sum(busy.values()),
        }

    return run
