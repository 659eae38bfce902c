"""Claims that follow from the paper's formulas and its printed numbers: parameters, FLOPs, training times."""

from collections.abc import Iterator
from math import isclose, sqrt

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.experiment.validity import violations
from suite.measure.flops import (
    TRAINING_TOKENS,
    counted_flops,
    hardware_flops,
    padded_vocab,
    paper_flops,
    paper_parameters,
)
from suite.report.claims.check import Check, Computed, Finding, Untestable, within
from suite.report.claims.evidence import PAPER_SCALE, Evidence, MissingError, batch, listed, ranks
from suite.report.claims.listed import Claim
from suite.report.metrics import SECONDS_PER_DAY
from suite.report.paper.samples import Sample

TOKENS_1T = 450e9  # of the 1008B model's run, as the metric's name says
_DAYS_PER_MONTH = 365.25 / 12
_SMALL = 0.05  # what may be left out


def training_days(tokens: float, parameters: float, rate: float) -> float:
    """Days by the paper's equation 4, 8 T P / rate; `rate` in FLOP/s of all ranks."""
    return 8 * tokens * parameters / rate / SECONDS_PER_DAY


def exact_days(tokens: float, point: Point, rate: float) -> float:
    """Days by equation 3, iterations times FLOPs over rate; `rate` in FLOP/s of all ranks."""
    iterations = tokens / (batch(point) * point.model.seq_length)
    return iterations * paper_flops(point.model, batch(point)) / rate / SECONDS_PER_DAY


def table_1(evidence: Evidence) -> list[Sample]:
    """The rows of table 1 with their points, by ranks."""
    found = evidence.lens("published", PAPER_SCALE).samples("table-1")
    if not found:
        raise MissingError("no published row of table 1 has a point of the experiment table-1")
    return sorted(found, key=lambda sample: ranks(sample.point))


def _parameters(claim: Claim, evidence: Evidence) -> Finding:
    pairs = [(paper_parameters(one.point.model) / 1e9, one.published[0].params_b or 0.0) for one in table_1(evidence)]
    apart = max(abs(computed - printed) for computed, printed in pairs)
    return Finding(f"{len(pairs)} rows, at most {apart:.3f} billion apart", apart <= 0.05)


def _totals(claim: Claim, evidence: Evidence) -> Finding:
    apart, close = [], True
    for sample in table_1(evidence):
        rate, total, n = sample.value("tflops_per_gpu"), sample.value("petaflops"), ranks(sample.point)
        if rate is None or total is None:
            raise MissingError("a row of table 1 has no rate or no total")
        apart.append(abs(rate * n / 1000 - total))
        close = close and apart[-1] <= 0.5 * n / 1000 + 0.05  # the rate's rounding and the total's
    rounding = "within the rounding" if close else "more than the rounding"
    return Finding(f"{len(apart)} rows, at most {max(apart):.2f} PFLOP/s apart, {rounding}", close)


def _equation_3(claim: Claim, evidence: Evidence) -> Finding:
    """The sum over the products of queries to logits, as `measure/flops.py` counts them, against the closed form."""
    points = [sample.point for sample in table_1(evidence)]
    equal = [counted_flops(one.model, batch(one), "full") == paper_flops(one.model, batch(one)) for one in points]
    unpadded = [
        one for one in points if padded_vocab(one.model.vocab_size, one.parallel.tensor) == one.model.vocab_size
    ]
    executed = [
        hardware_flops(one.model, batch(one), one.parallel.tensor, "full") == paper_flops(one.model, batch(one))
        for one in unpadded
    ]
    return Finding(f"equal to the last digit for {sum(equal)} of {len(equal)} rows", all(equal + executed))


def _gpt3_days(claim: Claim, evidence: Evidence) -> Finding:
    (rate,) = evidence.of_table("Section 5.1", "tflops_per_gpu")
    (printed,) = evidence.of_table("Section 5.1", "days_300b_tokens")
    days = training_days(TRAINING_TOKENS, 1e9 * (rate.params_b or 0), 1e12 * rate.value * (rate.n_gpus or 1))
    return Finding(f"{days:.1f} days against {printed.printed}", within(days, printed.value, 0.5))


def _largest_days(claim: Claim, evidence: Evidence) -> Finding:
    (printed,) = evidence.of_table("Table 1", "days_450b_tokens")
    largest = table_1(evidence)[-1]
    rate = 1e12 * (largest.value("tflops_per_gpu") or 0) * ranks(largest.point)
    days = training_days(TOKENS_1T, 1e9 * (printed.params_b or 0), rate)
    exact = exact_days(TOKENS_1T, largest.point, rate)
    text = f"{days:.1f} days by equation 4 and {exact:.1f} by equation 3, against {printed.printed}"
    return Finding(text, within(days, printed.value, 0.5))


def _left_out(claim: Claim, evidence: Evidence) -> Finding:
    more = [
        exact_days(1.0, one.point, 1.0) / training_days(1.0, paper_parameters(one.point.model), 1.0) - 1
        for one in table_1(evidence)
    ]
    text = f"equation 3 is {listed((100 * part for part in more), '.1f')} % above equation 4, smallest model first"
    return Finding(text, max(more) <= _SMALL)


def _slower_system(claim: Claim, evidence: Evidence) -> Finding:
    model = 1e9 * (table_1(evidence)[-1].published[0].params_b or 0)
    months = training_days(TOKENS_1T, model, 1e15 * claim.number("PFLOP/s")) / _DAYS_PER_MONTH
    return Finding(f"{months:.1f} months", within(months, claim.number("months"), 0.1 * claim.number("months")))


def _one_v100(claim: Claim, evidence: Evidence) -> str:
    (row,) = evidence.of_table("Section 5.1", "days_300b_tokens")
    seconds = claim.number("years") * 365.25 * SECONDS_PER_DAY
    implied = 6 * TRAINING_TOKENS * 1e9 * (row.params_b or 0) / seconds / 1e12
    return f"no experiment of the paper; the years imply {implied:.1f} TFLOP/s without recomputation"


def _days_follow(claim: Claim, evidence: Evidence) -> Finding:
    """Days of table 2 by equation 3 at rates that round to the printed one."""
    closes = []
    for sample in evidence.lens("published", PAPER_SCALE).samples("table-2"):
        rate, days = sample.value("tflops_per_gpu"), sample.value("days_300b_tokens")
        if rate is not None and days is not None:
            slow, fast = (
                exact_days(TRAINING_TOKENS, sample.point, 1e12 * edge * ranks(sample.point))
                for edge in (rate - 0.5, rate + 0.5)
            )
            closes.append(fast - 0.5 <= days <= slow + 0.5)
    if not closes:
        raise MissingError("no row of table 2 has both a rate and days")
    return Finding(f"{sum(closes)} of {len(closes)} rows close by equation 3", all(closes))


def _fewest_checkpoints(claim: Claim, evidence: Evidence) -> Finding:
    """c A_in + (l/c) A_mid over a fine grid of c, for layers of several sizes relative to their inputs."""
    apart = []
    for layers in (8, 24, 96):
        for middle in (4.0, 17.0, 34.0):
            grid = (layers * step / 5_000 for step in range(1, 50_001))
            _, best = min((c + layers / c * middle, c) for c in grid)
            apart.append(abs(best / sqrt(layers * middle) - 1))
    return Finding(f"the minimum is there in {len(apart)} cases, within {100 * max(apart):.2f} %", max(apart) < 0.005)


def _ring(claim: Claim, evidence: Evidence) -> Finding:
    """The bytes that a rank sends in the 2 (d - 1) steps of a ring, each of 1/d of the buffer."""
    sent = {d: sum(1 / d for _ in range(2 * (d - 1))) / 2 for d in (2, 4, 8, 64)}
    holds = all(isclose(part, (d - 1) / d) for d, part in sent.items())
    return Finding(f"{listed(sent.values())} of the limit at d = {listed(sent, 'd')}", holds)


def _more_ranks_than_sequences(claim: Claim, evidence: Evidence) -> Finding:
    everything = Cluster(name="any", title="any", max_ranks=10**6)
    said = [
        bool(violations(_data_parallel(size, devices), everything))
        for size, devices in ((8, 8), (8, 16), (1536, 1536), (1536, 3072))
    ]
    return Finding("a point with more data ranks than sequences is refused", said == [False, True, False, True])


def _data_parallel(sequences: int, devices: int) -> Point:
    model = {"layers": 1, "hidden_size": 8, "heads": 1}
    return Point.model_validate(
        {"model": model, "parallel": {"data": devices}, "training": {"global_batch": sequences}}
    )


def _checkpoint_bytes(claim: Claim, evidence: Evidence) -> Finding:
    (row,) = evidence.of_table("Section 5.10", "checkpoint_size")
    each = 1e12 * row.value / (1e9 * (row.params_b or 1))
    return Finding(
        f"{each:.1f} bytes per parameter; 2 + 4 + 4 + 4 are fp16 weights, fp32 weights and two moments",
        within(each, 14, 0.5),
    )


def _interleaved_rows(claim: Claim, evidence: Evidence) -> str:
    points = [sample.point for sample in table_1(evidence)]
    interleaved = sum(point.schedule.chunks > 1 for point in points)
    return (
        f"the text and the released scripts disagree, and the experiment follows the scripts: {interleaved} of "
        f"{len(points)} rows interleave"
    )


def _said(text: str) -> Untestable:
    return Untestable(lambda claim, evidence: text)


def checks() -> Iterator[tuple[str, Check]]:
    """The checks of this module by the claim's id."""
    yield "T1-05", Computed(_parameters)
    yield "T1-06", Computed(_totals)
    yield "T1-07", Computed(_equation_3)
    yield "T1-08", _said("a definition; the suite, too, times whole iterations")
    yield "T1-09", Untestable(_interleaved_rows)
    yield "TT-01", Computed(_gpt3_days)
    yield "TT-02", Computed(_largest_days)
    yield "TT-03", Computed(_left_out)
    yield "TT-04", Computed(_slower_system)
    yield "TT-05", Untestable(_one_v100)
    yield "T2-05", Computed(_days_follow)
    yield "AN-12", Computed(_ring)
    yield "AN-17", Computed(_fewest_checkpoints)
    yield "LM-02", Computed(_more_ranks_than_sequences)
    yield "OP-03", _said("the suite's model has one layout of activations, and the paper no number of the other")
    yield "BW-01", _said("what the paper calls effective bisection bandwidth is not defined")
    yield "BW-02", _said("what the paper calls effective bisection bandwidth is not defined")
    yield "CK-01", Computed(_checkpoint_bytes)
    yield "CK-02", _said("the rate of the paper's file system is an input of the simulation, not a result")
    yield "CK-03", _said("the rate of the paper's file system is an input of the simulation, not a result")
