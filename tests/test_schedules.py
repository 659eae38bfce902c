"""Schedules: every accepted one proves with its closed forms, every broken one is refused with the reason."""

import re
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.experiment.point import Schedule as Options
from suite.pipeline.generators import GENERATORS, why_not
from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.interleaved import allowed_groups, interleaved
from suite.pipeline.generators.looped_bfs import looped_bfs
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.names import SCHEDULE_NAMES
from suite.pipeline.program import Action, Schedule, ScheduleError
from suite.pipeline.proof import prove
from suite.pipeline.timeline import Costs, Link, Network, critical_path, timeline

STAGES, MICROBATCHES, CHUNKS = st.integers(1, 8), st.integers(1, 24), st.integers(1, 4)
COSTS = st.builds(Costs, *[st.floats(0.1, 10)] * 3)


def actions(text):
    """Actions from "F0.1 BW1.0"."""
    return tuple(Action(kind, int(s), int(i)) for kind, s, i in re.findall(r"(BW|F|B|W)(\d+)\.(\d+)", text))


def assert_complete(schedule):
    """Every rank's program is exactly its stages' forwards and backwards, none twice."""
    for rank, program in enumerate(schedule.programs):
        mine = [stage for stage, host in enumerate(schedule.placement[0]) if host == rank]
        wanted = {Action(k, s, i) for k in ("F", "BW") for s in mine for i in range(schedule.microbatches)}
        assert len(program) == len(wanted)
        assert set(program) == wanted


def assert_bubble(times, bubble, work):
    assert times.bubble_makespan == pytest.approx(bubble, abs=1e-6)
    assert times.bubble_span == pytest.approx(bubble, abs=1e-6)
    assert times.work == pytest.approx(work)
    assert times.bubble_over_ideal == pytest.approx(bubble / work, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(p=STAGES, m=MICROBATCHES, costs=COSTS)
def test_gpipe_and_1f1b_prove_with_their_peaks_and_bubbles(p, m, costs):
    whole = costs.forward + costs.input_gradient + costs.weight_gradient
    peaks = {gpipe: tuple(m for _ in range(p)), one_f_one_b: tuple(min(p - rank, m) for rank in range(p))}
    for build, peak in peaks.items():
        schedule = build(p, m)
        assert_complete(schedule)
        proof = prove(schedule)
        assert proof.peak_chunks == proof.peak_activations == peak
        assert_bubble(timeline(schedule, costs), (p - 1) * whole, m * whole)


@settings(max_examples=500, deadline=None)
@given(p=STAGES, m=MICROBATCHES, v=CHUNKS, costs=COSTS, data=st.data())
def test_interleaved_proves_with_its_peaks_and_bubbles_for_every_allowed_group(p, m, v, costs, data):
    group = data.draw(st.sampled_from(allowed_groups(p, m)))
    schedule = interleaved(p, m, v, group)
    assert_complete(schedule)
    assert prove(schedule).peak_chunks == tuple(
        min(2 * (p - rank - 1) + (v - 1) * group + 1, m * v) for rank in range(p)
    )
    whole = costs.forward + costs.input_gradient + costs.weight_gradient
    lonely = (v - 1) * max(0, p - m)  # slots in which a group smaller than the pipeline leaves it idle
    assert_bubble(timeline(schedule, costs), whole / v * (p - 1 + lonely), m * whole)


def test_every_schedule_name_has_a_generator():
    assert tuple(GENERATORS) == SCHEDULE_NAMES


@pytest.mark.parametrize(("p", "m", "whole", "interleaved_2"), [(2, 4, 15, 13.5), (4, 8, 33, 28.5), (8, 16, 69, 58.5)])
def test_makespans_with_unit_costs(p, m, whole, interleaved_2):
    assert timeline(gpipe(p, m)).makespan == whole
    assert timeline(one_f_one_b(p, m)).makespan == whole
    assert timeline(interleaved(p, m, 2)).makespan == interleaved_2


def test_1f1b_of_three_stages_and_four_microbatches():
    assert one_f_one_b(3, 4).programs == (
        actions("F0.0 F0.1 F0.2 BW0.0 F0.3 BW0.1 BW0.2 BW0.3"),
        actions("F1.0 F1.1 BW1.0 F1.2 BW1.1 F1.3 BW1.2 BW1.3"),
        actions("F2.0 BW2.0 F2.1 BW2.1 F2.2 BW2.2 F2.3 BW2.3"),
    )


def test_interleaved_of_two_stages_two_chunks_and_four_microbatches():
    assert interleaved(2, 4, 2).programs == (
        actions("F0.0 F0.1 F2.0 F2.1 F0.2 BW2.0 F0.3 BW2.1 F2.2 BW0.0 F2.3 BW0.1 BW2.2 BW2.3 BW0.2 BW0.3"),
        actions("F1.0 F1.1 F3.0 BW3.0 F3.1 BW3.1 F1.2 BW1.0 F1.3 BW1.1 F3.2 BW3.2 F3.3 BW3.3 BW1.2 BW1.3"),
    )


@pytest.mark.parametrize(("p", "m", "v", "group"), [(4, 9, 3, 4), (8, 18, 2, 8), (8, 20, 2, 8)])
def test_lists_that_look_harmless_and_deadlock_are_caught(p, m, v, group):
    assert why_not(Options(name="interleaved", chunks=v, group=group), p, m)
    with pytest.raises(ScheduleError, match=r"deadlocks: rank \d cannot run (F|BW) \d+\.\d+ .*stuck too"):
        prove(interleaved(p, m, v, group))


def changed(programs):
    """1F1B of two stages and three microbatches with other programs for some ranks."""
    schedule = one_f_one_b(2, 3)
    return replace(schedule, programs=tuple(programs.get(r, p) for r, p in enumerate(schedule.programs)))


BROKEN = {
    "missing forward": (
        {1: actions("BW1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "F 1.0 appears 0 times",
    ),
    "missing backward": (
        {1: actions("F1.0 BW1.0 F1.1 F1.2 BW1.2")},
        "backward of stage 1, microbatch 1 must be .* found 0 BW, 0 B and 0 W",
    ),
    "duplicated": (
        {0: actions("F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2 BW0.2")},
        "BW 0.2 appears 2 times",
    ),
    "wrong rank": (
        {0: actions("F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2 F1.0"), 1: actions("BW1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "F 1.0 is in the program of rank 0, but its stage is on rank 1",
    ),
    "no such stage": (
        {0: actions("F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2 F2.0")},
        "F 2.0 of rank 0 is outside the schedule",
    ),
    "no such microbatch": (
        {0: actions("F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2 F0.3")},
        "F 0.3 of rank 0 is outside the schedule",
    ),
    "backward before its forward": (
        {1: actions("BW1.0 F1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "rank 1 cannot run BW 1.0 .* F 1.0 comes later in its own program",
    ),
    "orders that wait for each other": (
        {0: actions("F0.0 BW0.0 F0.1 BW0.1 F0.2 BW0.2"), 1: actions("F1.0 F1.1 BW1.0 BW1.1 F1.2 BW1.2")},
        "rank 0 cannot run BW 0.0 .* BW 1.0 of rank 1 cannot run before F 1.1, which is stuck too",
    ),
    "B without W": (
        {1: actions("F1.0 B1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "stage 1, microbatch 0 must be .* found 0 BW, 1 B and 0 W",
    ),
    "W without B": (
        {1: actions("F1.0 W1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "stage 1, microbatch 0 must be .* found 0 BW, 0 B and 1 W",
    ),
    "BW and B both": (
        {1: actions("F1.0 BW1.0 B1.0 F1.1 BW1.1 F1.2 BW1.2")},
        "stage 1, microbatch 0 must be .* found 1 BW, 1 B and 0 W",
    ),
    "recomputation": (
        {1: (Action("F", 1, 0), Action("R", 1, 0), *actions("BW1.0 F1.1 BW1.1 F1.2 BW1.2"))},
        "R 1.0 is a recomputation, which no engine runs",
    ),
    "slices": (
        {1: (Action("F", 1, 0, slice=1), *actions("F1.0 BW1.0 F1.1 BW1.1 F1.2 BW1.2"))},
        "F 1.0/1 is a slice of the sequence, which no engine runs",
    ),
}


@pytest.mark.parametrize(("programs", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_program_is_refused_with_the_reason(programs, reason):
    with pytest.raises(ScheduleError, match=reason):
        prove(changed(programs))


def test_replicas_of_a_stage_on_one_rank_are_refused():
    rows = "F0.0 F2.1' BW2.1' BW0.0", "F1.0 F1.1' BW1.0 BW1.1'", "F2.0 BW2.0 F0.1' BW0.1'"
    programs = tuple(
        tuple(
            Action(kind, int(s), int(i), replica=len(up)) for kind, s, i, up in re.findall(r"(BW|F)(.)\.(.)('?)", row)
        )
        for row in rows
    )
    with pytest.raises(ScheduleError, match="rank 1 hosts stage 1 of several replicas"):
        prove(Schedule("both ways", 3, 2, 1, ((0, 1, 2), (2, 1, 0)), programs))


NETWORKS = [None, *(Network(1.0, Link(0.25, 2.0), overlap=overlap) for overlap in (True, False))]


@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=60, deadline=None)
@given(p=st.integers(1, 5), m=st.integers(1, 8), v=st.integers(1, 2), costs=COSTS)
def test_the_critical_path_leaves_no_time_unexplained(network, p, m, v, costs):
    schedule = looped_bfs(p, m, v)
    times = timeline(schedule, costs, network)
    arrivals = {transfer.consumer: transfer.end for transfer in times.transfers}
    path = critical_path(schedule, times)
    assert path[0].start == 0
    assert path[-1].end == times.makespan
    for before, span in pairwise(path):
        if before.rank != span.rank:
            assert span.start == arrivals.get(span.action, before.end)
        elif network is None or network.overlap:
            assert span.start == before.end
        else:  # the rank sends, or takes a message, or both
            assert span.start - before.end == pytest.approx(0.5 * round((span.start - before.end) / 0.5))


def test_a_backward_split_into_b_and_w_is_accepted():
    split = {1: actions("F1.0 B1.0 W1.0 F1.1 B1.1 F1.2 W1.1 BW1.2")}
    assert prove(changed(split)).peak_chunks == (2, 2)


@settings(max_examples=100, deadline=None)
@given(p=st.integers(2, 5), m=st.integers(2, 8), v=st.integers(1, 2), data=st.data())
def test_any_swap_of_neighbours_either_proves_or_is_refused_by_name(p, m, v, data):
    schedule = interleaved(p, m, v, data.draw(st.sampled_from(allowed_groups(p, m))))
    rank = data.draw(st.integers(0, p - 1))
    program = list(schedule.programs[rank])
    at = data.draw(st.integers(0, len(program) - 2))
    program[at : at + 2] = reversed(program[at : at + 2])
    programs = (*schedule.programs[:rank], tuple(program), *schedule.programs[rank + 1 :])
    try:
        prove(replace(schedule, programs=programs))
    except ScheduleError as error:
        assert re.search(r"rank \d cannot (run|send) ", str(error))  # noqa: PT017


@pytest.fixture(scope="module")
def torch_order():
    """Builds the order that torch.distributed.pipelining has for a schedule, as our actions by rank."""
    from torch.distributed.pipelining import PipelineStage, schedules

    kinds = {"FORWARD": "F", "FULL_BACKWARD": "BW", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}

    def order(name, p, m, v=1):
        kind = schedules.get_schedule_class(name)
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, p, None
        stage.num_stages = p * v
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        built = kind(stage, m) if single else kind([stage] * v, m)
        return tuple(
            tuple(
                Action(kinds[cell.computation_type.name], cell.stage_index, cell.microbatch_index)
                for cell in built.pipeline_order[rank]
                if cell is not None and cell.computation_type.name in kinds
            )
            for rank in range(p)
        )

    return order


@pytest.mark.parametrize(
    ("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 10, 2), (4, 7, 3), (4, 3, 2), (3, 9, 4), (8, 16, 2)]
)
def test_interleaved_is_torchs_order_with_torchs_group(torch_order, p, m, v):
    group = m // max(1, m // p)
    assert interleaved(p, m, v, group).programs == torch_order("Interleaved1F1B", p, m, v)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (4, 8), (4, 3)])
def test_gpipe_is_torchs_order(torch_order, p, m):
    assert gpipe(p, m).programs == torch_order("GPipe", p, m)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 9)])
def test_1f1b_is_torchs_order_but_for_the_forwards_of_its_last_row(torch_order, p, m):
    ours, theirs = one_f_one_b(p, m).programs, torch_order("1F1B", p, m)
    assert ours[:-1] == theirs[:-1]
    # torch shows the last rank's forwards as 1..m, where there are 0..m-1 (it does run 0..m-1).
    shown = tuple(a._replace(microbatch=a.microbatch - 1) if a.kind == "F" else a for a in theirs[-1])
    assert shown == ours[-1]
