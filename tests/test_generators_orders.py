"""The orders themselves: printed examples, torch's own lists, Megatron's rule, and orders that deadlock."""

from dataclasses import replace
from unittest import mock

import pytest
from schedules import actions, built

from suite.pipeline.generators.interleaved import allowed_groups, interleaved
from suite.pipeline.program import Action, ScheduleError
from suite.pipeline.proof import prove

PRINTED = {
    ("gpipe", 3, 4): {1: "F1.0 F1.1 F1.2 F1.3 BW1.0 BW1.1 BW1.2 BW1.3"},
    ("1f1b", 3, 4): {
        0: "F0.0 F0.1 F0.2 BW0.0 F0.3 BW0.1 BW0.2 BW0.3",
        1: "F1.0 F1.1 BW1.0 F1.2 BW1.1 F1.3 BW1.2 BW1.3",
        2: "F2.0 BW2.0 F2.1 BW2.1 F2.2 BW2.2 F2.3 BW2.3",
    },
    ("interleaved", 2, 4): {
        0: "F0.0 F0.1 F2.0 F2.1 F0.2 BW2.0 F0.3 BW2.1 F2.2 BW0.0 F2.3 BW0.1 BW2.2 BW2.3 BW0.2 BW0.3",
        1: "F1.0 F1.1 F3.0 BW3.0 F3.1 BW3.1 F1.2 BW1.0 F1.3 BW1.1 F3.2 BW3.2 F3.3 BW3.3 BW1.2 BW1.3",
    },
    ("looped-bfs", 2, 4): {
        0: "F0.0 F0.1 F0.2 F0.3 F2.0 F2.1 F2.2 F2.3 BW2.3 BW2.2 BW2.1 BW2.0 BW0.3 BW0.2 BW0.1 BW0.0",
    },
    ("zb-h1", 3, 4): {
        0: "F0.0 F0.1 F0.2 B0.0 W0.0 F0.3 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3",
        1: "F1.0 F1.1 B1.0 F1.2 B1.1 W1.0 F1.3 B1.2 W1.1 B1.3 W1.2 W1.3",
        2: "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 W2.0 F2.3 B2.3 W2.1 W2.2 W2.3",
    },
    ("zb-h2", 2, 4): {
        0: "F0.0 F0.1 F0.2 B0.0 W0.0 F0.3 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3",
        1: "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 W1.0 F1.3 B1.3 W1.1 W1.2 W1.3",
    },
    ("zb-v", 2, 4): {
        0: "F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 F0.3 B0.0 W0.0 F3.2 B3.2 W3.2 B0.1 W0.1 F3.3 B3.3 W3.3 B0.2 "
        "W0.2 B0.3 W0.3",
        1: "F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 F1.3 B1.1 W1.1 F2.3 B2.2 W2.2 B1.2 B2.3 B1.3 "
        "W1.2 W2.3 W1.3",
    },
    ("v-half", 2, 4): {
        0: "F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 B0.0 W3.1 W0.0 F3.2 F0.3 B3.2 B0.1 W3.2 W0.1 F3.3 B3.3 B0.2 W3.3 "
        "B0.3 W0.2 W0.3",
        1: "F1.0 F2.0 F1.1 F2.1 B2.0 B1.0 W2.0 F1.2 W1.0 F2.2 B2.1 B1.1 W2.1 F1.3 W1.1 F2.3 B2.2 B1.2 B2.3 B1.3 W2.2 "
        "W1.2 W2.3 W1.3",
    },
}


@pytest.mark.parametrize(("name", "p", "m"), PRINTED)
def test_printed_examples(name, p, m):
    programs = built(name, p, m).programs
    for rank, text in PRINTED[name, p, m].items():
        assert programs[rank] == actions(text)


def test_chimera_of_four_stages_and_four_microbatches():
    schedule = built("chimera", 4, 4)
    outer = actions("F0.0 F0.1 F3.0' BW3.0' F3.1' BW3.1' BW0.0 BW0.1", replicas=2)
    inner = actions("F1.0 F2.0' F1.1 F2.1' BW2.0' BW1.0 BW2.1' BW1.1", replicas=2)

    def mirrored(program):
        """The same with the replicas exchanged: microbatches 2j and 2j+1 change places."""
        return tuple(a._replace(microbatch=a.microbatch ^ 1, replica=1 - a.replica) for a in program)

    assert schedule.programs == (outer, inner, mirrored(inner), mirrored(outer))
    assert schedule.placement == ((0, 1, 2, 3), (3, 2, 1, 0))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_half_of_dualpipe_is_dualpipe_v_and_the_other_half_mirrors_it(p, m):
    """Direction 0 has the even microbatches, and the stages of direction 1 count from the other end."""
    whole, half = built("dualpipe", p, m).programs, built("dualpipe-v", p // 2, m // 2).programs
    for rank in range(p // 2):
        assert whole[rank] == tuple(
            Action(kind, stage, 2 * i + (stage >= p // 2), replica=int(stage >= p // 2))
            for kind, stage, i, _, _ in half[rank]
        )
        assert whole[p - 1 - rank] == tuple(
            a._replace(microbatch=a.microbatch ^ 1, replica=1 - a.replica) for a in whole[rank]
        )


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 9), (3, 5)])
def test_interleaved_zero_bubble_of_one_chunk_is_zb_h1(p, m):
    ours = built("interleaved-zb", p, m, chunks=1, group=allowed_groups(p, m)[-1])
    assert ours.programs == built("zb-h1", p, m).programs


@pytest.fixture(scope="module")
def torch_order():
    """Builds the order that torch.distributed.pipelining has for a schedule of several stages per rank, by rank.

    A pair that torch overlaps becomes its two actions in a row; its no-ops are left out.
    """
    from torch.distributed.pipelining import PipelineStage, schedules

    kinds = {"FORWARD": "F", "FULL_BACKWARD": "BW", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}

    def order(name, p, m, v):
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, p, None
        stage.num_stages = p * v
        rows = schedules.get_schedule_class(name)([stage] * v, m).pipeline_order
        return tuple(
            tuple(
                Action(kinds[part.computation_type.name], part.stage_index, part.microbatch_index)
                for cell in rows[rank]
                if cell is not None
                for part in cell.sub_actions or (cell,)
            )
            for rank in range(p)
        )

    return order


MANY = [(p, m) for p in (1, 2, 3, 4, 8) for m in (p, p + 1, 2 * p, 2 * p + 3, 4 * p)]


@pytest.mark.parametrize(("p", "m"), [*MANY, (4, 1), (4, 3), (8, 5)])
def test_zb_v_and_looped_bfs_are_torchs_order(torch_order, p, m):
    assert built("zb-v", p, m).programs == torch_order("ZBVZeroBubble", p, m, 2)
    for v in (1, 2, 3):
        assert built("looped-bfs", p, m, chunks=v).programs == torch_order("LoopedBFS", p, m, v)


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in MANY if m >= 2 * p])
def test_dualpipe_v_is_torchs_order(torch_order, p, m):
    assert built("dualpipe-v", p, m).programs == torch_order("DualPipeV", p, m, 2)


@pytest.mark.parametrize(
    ("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 10, 2), (4, 7, 3), (4, 3, 2), (3, 9, 4), (8, 16, 1)]
)
def test_interleaved_zero_bubble_is_torchs_order_with_torchs_group(torch_order, p, m, v):
    group = m // max(1, m // p)  # torch divides the microbatches into as many groups as there are whole pipelines
    assert built("interleaved-zb", p, m, chunks=v, group=group).programs == torch_order(
        "InterleavedZeroBubble", p, m, v
    )


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_zb_h1_is_torchs_interleaved_zero_bubble_of_one_chunk(torch_order, p, m):
    assert built("zb-h1", p, m).programs == torch_order("InterleavedZeroBubble", p, m, 1)


def megatron(rank, p, m, v, group):
    """Megatron-LM's interleaved 1F1B in its own terms: the virtual microbatch k of a rank is forward k or backward k.

    Its chunk and microbatch follow from k alone where all groups are full; the last group may be shorter.
    """

    def entry(k):
        first = k // (group * v) * group
        size = min(group, m - first)
        chunk, i = divmod(k - first * v, size)
        return first + i, chunk

    def run(kind, k):
        i, chunk = entry(k)
        chunk = chunk if kind == "F" else v - 1 - chunk
        return Action(kind, chunk * p + rank, i)

    total, warmup = m * v, min(m * v, (p - rank - 1) * 2 + (v - 1) * group)
    steady = total - warmup
    program = [run("F", k) for k in range(warmup)]
    for k in range(steady):
        program += [run("F", k + warmup), run("BW", k)]
    return (*program, *(run("BW", k) for k in range(steady, total)))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved_is_megatrons_rule_for_every_allowed_group(p, v):
    for m in (1, p, p + 1, 2 * p, 3 * p + 1):
        for group in allowed_groups(p, m):
            programs = tuple(megatron(rank, p, m, v, group) for rank in range(p))
            assert built("interleaved", p, m, chunks=v, group=group).programs == programs


@pytest.mark.parametrize(("p", "m", "v", "group"), [(4, 9, 3, 4), (8, 18, 2, 8), (8, 20, 2, 8)])
def test_groups_past_the_rule_deadlock_and_the_proof_names_the_action(p, m, v, group):
    with pytest.raises(ScheduleError, match=r"rank \d cannot run (F|BW) \d+\.\d+ .*stuck too"):
        prove(interleaved(p, m, v, group))


@pytest.mark.parametrize(
    ("name", "rank", "one", "other", "stuck"),
    [
        ("zb-h1", 1, "B1.0", "F1.1", None),  # one microbatch fewer in flight: slower, but it runs
        ("zb-v", 1, "F2.0", "B2.0", "B 2.0"),  # a backward before its own forward
        ("v-half", 0, "F3.0", "W3.0", "W 3.0"),
        ("dualpipe-v", 1, "F2.0", "BW2.0", "BW 2.0"),
        ("interleaved-zb", 0, "F0.0", "F2.0", "F 2.0"),  # rank 0 would need what comes back to it first
    ],
)
def test_two_actions_that_change_places_are_found_out_where_it_matters(name, rank, one, other, stuck):
    schedule = built(name, 2, 4)
    program = list(schedule.programs[rank])
    places = [program.index(actions(text)[0]) for text in (one, other)]
    program[places[0]], program[places[1]] = program[places[1]], program[places[0]]
    programs = (*schedule.programs[:rank], tuple(program), *schedule.programs[rank + 1 :])
    changed = replace(schedule, programs=programs)
    if stuck is None:
        prove(changed)
        return
    with pytest.raises(ScheduleError, match=f"rank {rank} cannot run {stuck} "):
        prove(changed)
