"""The bubble rates that the authors of zero-bubble pipelines print, from the times that they profiled."""

from collections import defaultdict

import pytest
from schedules import built

from suite.pipeline.timeline import Costs, Link, Network, timeline
from suite.records.published import SCHEDULES, PublishedRow, published
from suite.simulate.rows import placed

ROWS = published("zero_bubble_rates")
RATES = [row for row in ROWS if row.metric == "bubble_rate"]
TOLERANCE = {"1F1B-interleaved": 0.004, "ZB-1p": 0.0005, "ZB-2p": 0.001}
CAPS = {"ZB-1p": 1, "ZB-2p": 2}  # microbatches in flight for each stage

PROFILED: dict[str | None, dict[str, float]] = defaultdict(dict)  # by configuration, milliseconds
for _row in ROWS:
    if _row.metric != "bubble_rate":
        PROFILED[_row.config_id][_row.metric] = _row.value


def rate(row: PublishedRow, **fields: object) -> float:
    """Of the longest stage's span, what is not work."""
    times = PROFILED[row.config_id]
    costs, latency = (times["T_F"], times["T_B"], times["T_W"]), times["T_comm"]
    p, m = row.pp, row.global_batch // row.microbatch
    if row.schedule in CAPS:
        # A layer keeps s b h (34 + 5 a s / h) bytes after F, and 32 s b h of them after B (their table 1).
        kept = 32 / (34 + 5 * row.heads * row.seq / row.hidden)
        options = {"cap": CAPS[row.schedule] * p, "costs": costs, "latency": latency, "kept": kept, **fields}
        schedule = built("list", p, m, **options)
    else:
        schedule = built(SCHEDULES[row.schedule], p, m, chunks=row.vpp)
    bubble = timeline(schedule, Costs(*costs), Network(link=Link(latency))).bubble_span
    return bubble / (bubble + m * sum(costs))


def test_there_are_six_schedules_in_eight_configurations():
    assert len(PROFILED) == 8
    assert len({row.schedule for row in RATES}) == 6
    assert len(RATES) == 48


@pytest.mark.parametrize("row", RATES, ids=lambda row: f"{row.config_id}-{row.schedule}")
def test_the_bubble_rate_is_the_published_one(row):
    assert rate(row) == pytest.approx(row.value, abs=TOLERANCE.get(row.schedule, 0.0005))


@pytest.mark.parametrize(
    "row", [row for row in RATES if row.schedule == "ZB-2p"], ids=lambda row: f"{row.config_id}-{row.schedule}"
)
def test_the_published_rates_need_what_b_lets_go(row):
    """Under a cap that counts whole microbatches until W no order can have them; this one has the least."""
    times = PROFILED[row.config_id]
    p, m = row.pp, row.global_batch // row.microbatch
    least = (p - 1) * (times["T_F"] + times["T_B"] + 2 * times["T_comm"]) - (2 * p - 1) * times["T_W"]
    work = m * (times["T_F"] + times["T_B"] + times["T_W"])
    assert least / (least + work) > row.value + 0.03
    assert rate(row, kept=1.0) == pytest.approx(least / (least + work), abs=0.001)


def test_a_measured_row_has_the_order_that_the_simulator_makes_for_its_times():
    rows = [row for row in published("zero_bubble") if row.schedule in CAPS and row.metric != "memory"]
    assert {row.schedule for row in rows} == set(CAPS)
    for row in rows:
        schedule = placed(row).point.schedule
        assert (schedule.name, schedule.cap) == ("list", CAPS[row.schedule] * row.pp)
        forward, inputs, weights = schedule.costs
        profiled = next(times for name, times in PROFILED.items() if name.startswith(f"zbrate:{row.params_b}B"))
        assert forward / weights == pytest.approx(profiled["T_F"] / profiled["T_W"], rel=0.25)
        assert inputs / weights == pytest.approx(profiled["T_B"] / profiled["T_W"], rel=0.25)
        assert 0 < schedule.latency < 0.25 * forward
