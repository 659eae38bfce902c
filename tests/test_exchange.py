"""Schedules as files: every form comes back as it was, torch runs what is exported, and broken files are refused."""

import contextlib
import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from suite.pipeline import exchange
from suite.pipeline.exchange import as_program_json, read_schedule
from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.interleaved import allowed_groups, interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.program import Action, Schedule, ScheduleError
from suite.pipeline.proof import prove
from suite.pipeline.torch_csv import as_torch_csv, as_torch_csv_comms


def listed(name, placement, *rows):
    """A schedule from rows such as "F0.0 F1.0"."""
    programs = tuple(
        tuple(Action(kind, int(s), int(i)) for kind, s, i in re.findall(r"(BW|F|B|W|R)(\d+)\.(\d+)", row))
        for row in rows
    )
    microbatches = 1 + max(action.microbatch for program in programs for action in program)
    return Schedule(name, len(rows), microbatches, len(placement) // len(rows), (placement,), programs)


ZB_V = listed(
    "zb-v",
    (0, 1, 1, 0),
    "F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 F0.3 B0.0 W0.0 F3.2 B3.2 W3.2 B0.1 W0.1 F3.3 B3.3 W3.3 B0.2 W0.2 "
    "B0.3 W0.3",
    "F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 F1.3 B1.1 W1.1 F2.3 B2.2 W2.2 B1.2 B2.3 B1.3 W1.2 "
    "W2.3 W1.3",
)
SCHEDULES = (one_f_one_b(2, 4), gpipe(3, 2), interleaved(2, 4, 2), interleaved(4, 8, 3), one_f_one_b(1, 2), ZB_V)
FORMS = {
    "torch-csv": as_torch_csv,
    "torch-csv-comms": lambda schedule: as_torch_csv_comms(prove(schedule).lowered),
    "program-json": as_program_json,
}


@st.composite
def schedules(draw):
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    if draw(st.booleans()):
        return draw(st.sampled_from([gpipe, one_f_one_b]))(p, m)
    return interleaved(p, m, draw(st.integers(1, 3)), draw(st.sampled_from(allowed_groups(p, m))))


@pytest.fixture
def written(tmp_path):
    """Writes a file and gives its path."""

    def write(text, name="given.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.name}-{schedule.stages}")
def test_every_form_comes_back_as_it_was(schedule, form, written):
    path = written(FORMS[form](schedule), f"{schedule.name}.txt")
    read = read_schedule(path)
    assert read == schedule
    assert FORMS[form](read) == path.read_text()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.name}-{schedule.stages}")
def test_torchs_csv_is_a_row_a_rank_of_cells_that_torch_reads(schedule):
    letters = {"F": "F", "BW": "B", "B": "I", "W": "W"}
    rows = [row.split(",") for row in as_torch_csv(schedule).splitlines()]
    for row, program in zip(rows, schedule.programs, strict=True):
        assert row == [f"{a.stage}{letters[a.kind]}{a.microbatch}" for a in program]
    for row, alone in zip(FORMS["torch-csv-comms"](schedule).splitlines(), rows, strict=True):
        read = [torch_schedules._Action.from_str(cell) for cell in row.split(",")]
        assert ",".join(map(str, read)) == row
        assert [str(action) for action in read if action.is_compute_op] == alone


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=schedules(), form=st.sampled_from(sorted(FORMS)))
def test_any_schedule_comes_back_as_it_was(schedule, form, written):
    assert read_schedule(written(FORMS[form](schedule), f"{schedule.name}.txt")) == schedule


@pytest.mark.parametrize("changed", [Action("R", 0, 0), Action("F", 0, 0, slice=1), Action("F", 0, 0, replica=1)])
def test_torchs_forms_refuse_what_they_have_no_letter_for_and_name_the_form_that_has(changed):
    schedule = Schedule("other", 1, 1, 1, ((0,), (0,)), ((changed, Action("BW", 0, 0)),))
    with pytest.raises(ValueError, match=re.escape(f"cannot express {changed}; --format program-json can")):
        as_torch_csv(schedule)
    ops = tuple(op._replace(action=changed) for op in prove(gpipe(1, 1)).lowered.ops[0])
    lowered = SimpleNamespace(schedule=schedule, ops=(ops,))
    with pytest.raises(ValueError, match=re.escape(f"cannot express {changed}; --format program-json can")):
        as_torch_csv_comms(lowered)


def test_the_json_of_a_program_has_slices_and_replicas(written, monkeypatch):
    monkeypatch.setattr(exchange, "prove", lambda schedule: None)  # such schedules are proved elsewhere
    rows = (
        (Action("F", 0, 0), Action("F", 1, 1, 2, 1), Action("R", 0, 0), Action("B", 0, 0)),
        (Action("F", 0, 1, replica=1), Action("W", 1, 0, slice=1)),
    )
    schedule = Schedule('a "name"', 2, 2, 1, ((0, 1), (1, 0)), rows)
    assert read_schedule(written(as_program_json(schedule))) == schedule


def test_the_documented_json_is_what_is_written():
    page = (Path(__file__).parents[1] / "docs" / "schedules.md").read_text()
    assert textwrap.indent(as_program_json(one_f_one_b(2, 1)), "    ") in page


# What torch writes, and what editors do to it.

TORCHS = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("name", TORCHS)
def test_what_torch_dumps_is_read_and_both_forms_are_one_schedule(tmp_path, name, p, m):
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, p, 2 * p, None
    built = torch_schedules.get_schedule_class(name)([stage] * 2, m)
    built._dump_csv(str(tmp_path / f"{name}.csv"), format="compute_only")
    alone = read_schedule(tmp_path / f"{name}.csv")
    built._dump_csv(str(tmp_path / f"{name}.csv"))
    assert "REDUCE_GRAD" in (tmp_path / f"{name}.csv").read_text()
    assert read_schedule(tmp_path / f"{name}.csv") == alone
    assert (alone.name, alone.stages, alone.microbatches, alone.chunks) == (name, p, m, 2)
    letters = {"F": "F", "B": "BW", "I": "B", "W": "W"}
    for rank, program in enumerate(alone.programs):
        cells = re.findall(r"(\d+)([FBIW])(\d+)", " ".join(map(str, built.pipeline_order[rank])))
        assert program == tuple(Action(letters[kind], int(s), int(i)) for s, kind, i in cells)


PLAIN = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
COMMS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        COMMS,
        PLAIN.replace("\n", "\r\n"),
        "\ufeff" + COMMS,
        PLAIN.rstrip("\n"),
        PLAIN + "\n\n",
        PLAIN.replace(",", " , "),
        PLAIN.replace("0B0", ",,0B0,"),
        PLAIN.replace("0F0", '"0F0"'),
        PLAIN.replace("1B0,1F1", "(1B0;1F1)OVERLAP_F_B"),
        COMMS.replace("1B0,1SEND_B0,1F1", "(1B0;1F1)OVERLAP_F_B,1SEND_B0"),
        COMMS.replace("0F0,", "0UNSHARD,0F0,").replace("0REDUCE", "0RESHARD,0REDUCE"),
    ],
    ids=lambda text: text[:30].replace("\n", "/"),
)
def test_harmless_differences_are_read_as_the_same(written, text):
    assert read_schedule(written(text)) == replace(
        listed("given", (0, 1), "F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1")
    )


# Every kind of broken file: what is changed in a good one, and what the refusal says.

FOUR = "0F0,0F1,0B0,0B1,3F0,3F1,3B0,3B1\n1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1\n"
THREE = (
    "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    "2RECV_F0,2F0,2B0,2SEND_B0,2REDUCE_GRAD\n"
)


def ring():
    """Three ranks in a ring, each receiving right before and sending right after each action."""
    rows = []
    for rank in range(3):
        row = []
        for stage in (rank, rank + 3):
            for microbatch in range(3):
                row += [f"{stage}RECV_F{microbatch}"] * (stage > 0) + [f"{stage}F{microbatch}"]
                row += [f"{stage}SEND_F{microbatch}"] * (stage < 5)
        for stage in (rank + 3, rank):
            for microbatch in range(3):
                row += [f"{stage}RECV_B{microbatch}"] * (stage < 5) + [f"{stage}B{microbatch}"]
                row += [f"{stage}SEND_B{microbatch}"] * (stage > 0)
        rows.append(",".join([*row, f"{rank}REDUCE_GRAD", f"{rank + 3}REDUCE_GRAD"]))
    return "\n".join(rows)


BROKEN_CELLS = {
    "junk after a cell": (PLAIN, "1F0", "1F0junk", "rank 1, cell 1: '1F0junk' is no action"),
    "unknown letter": (PLAIN, "0B1", "0X1", "rank 0, cell 4: '0X1' is no action"),
    "no microbatch": (PLAIN, "0B1", "0B", "rank 0, cell 4: '0B' is no action"),
    "reduction with a microbatch": (COMMS, "0REDUCE_GRAD", "0REDUCE_GRAD1", "rank 0, cell 9: '0REDUCE_GRAD1' is no"),
    "digits of another script": (PLAIN, "0B1", "٠B1", "rank 0, cell 4: '٠B1' is no action"),
    "endless number": (PLAIN, "0B1", "0B" + "9" * 5000, "rank 0, cell 4: '0B9999"),
    "message in a pair": (
        COMMS,
        "0F1",
        "(0F1;0SEND_F1)OVERLAP_F_B",
        "rank 0, cell 3: '(0F1;0SEND_F1)OVERLAP_F_B' is no",
    ),
    "pair in a pair": (PLAIN, "0B1", "((0B1;0F1)OVERLAP_F_B;0F1)OVERLAP_F_B", "is no action"),
    "header": ("", "", "rank 0,rank 1\n" + PLAIN, "row 1 has no action (it starts with 'rank 0')"),
    "broken quotes": (PLAIN, "1F0", '"1F0" x', "is not a CSV file"),
}
BROKEN_PROGRAMS = {
    "row of nothing": (PLAIN, "1F0,1B0,1F1,1B1", ",,", "rank 1 has no actions"),
    "empty row": (THREE, "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD", "", "rank 1 has no actions"),
    "duplicated": (PLAIN, "0F0,", "0F0,0F0,", "rank 0: 0F0 appears 2 times; every action runs exactly once"),
    "forward missing": (PLAIN, "1F1,", "", "rank 1: 1F1 is missing; every microbatch passes every stage forward"),
    "backward missing": (PLAIN, ",0B1", "", "rank 0: 0B1 is missing; every microbatch passes every stage backward"),
    "weight gradient missing": (PLAIN, "0B1", "0I1", "rank 0: 0W1 is missing; 0I1 is only half of it"),
    "input gradient missing": (PLAIN, "0B1", "0W1", "rank 0: 0I1 is missing; 0W1 is only half of it"),
    "whole and split": (
        PLAIN,
        "0B1",
        "0B1,0W1",
        "rank 0: 0B1 and 0W1 are both there; a backward is either B, or I and W",
    ),
    "whole and both halves": (PLAIN, "0B1", "0B1,0I1,0W1", "rank 0: 0B1 and 0I1 are both there"),
    "stage on two ranks": (PLAIN, "1F1", "1F1,0F1", "rank 1: 0F1 is on the wrong rank: stage 0 is on rank 0"),
    "action on the wrong rank": (FOUR, "0B1,", "0B1,2F0,", "rank 0: 2F0 is on the wrong rank: stage 2 is on rank 1"),
    "gap in the stages": (
        PLAIN,
        "1F0,1B0,1F1,1B1",
        "2F0,2B0,2F1,2B1",
        "stage 1 has no action in any row, but stage 2 has",
    ),
    "gap in the microbatches": (
        "",
        "",
        PLAIN.replace("F1", "F2").replace("B1", "B2"),
        "microbatch 1 has no action in any",
    ),
    "huge microbatch": (PLAIN, "0B1", "0B1,0F999999999", "microbatch 2 has no action in any row"),
    "uneven": (FOUR, ",3F0,3F1,3B0,3B1", "\n3F0,3F1,3B0,3B1", "rank 2 hosts 2 stages, but rank 0 hosts 1"),
    "backward before forward": (PLAIN, "0F1,0B0,0B1", "0B0,0B1,0F1", "deadlocks: rank 0 cannot run BW 0.1"),
    "weight before input gradient": (PLAIN, "0B1", "0W1,0I1", "cannot run W 0.1"),
    "ranks that wait for each other": (
        "",
        "",
        FOUR,
        "deadlocks: rank 0 cannot run BW 0.0 (position 2): BW 1.0 of rank 1",
    ),
}
BROKEN_MESSAGES = {
    "SEND missing": (COMMS, "0SEND_F1,", "", "rank 0: 0SEND_F1 is missing; 1RECV_F1 of rank 1 would wait for ever"),
    "RECV missing": (COMMS, "1RECV_F1,", "", "rank 1: 1RECV_F1 is missing; nobody takes 0SEND_F1 of rank 0"),
    "both ends missing": (
        "",
        "",
        COMMS.replace("0SEND_F1,", "").replace("1RECV_F1,", ""),
        "rank 0: 0SEND_F1 is missing, and so is 1RECV_F1 on rank 1; 1F1 needs what 0F1 makes",
    ),
    "SEND of no microbatch": (
        COMMS,
        "0SEND_F1",
        "0SEND_F1,0SEND_F2",
        "rank 0: 0SEND_F2 belongs to no message: there is no",
    ),
    "SEND to no stage": (
        COMMS,
        "0B0",
        "0B0,0SEND_B0",
        "rank 0: 0SEND_B0 belongs to no message: stage 0 has no neighbour",
    ),
    "RECV on one rank": (
        as_torch_csv_comms(prove(ZB_V).lowered),
        "2F0",
        "2RECV_F0,2F0",
        "rank 1: 2RECV_F0 belongs to no message: stages 2 and 1",
    ),
    "SEND twice": (COMMS, "0SEND_F1", "0SEND_F1,0SEND_F1", "rank 0: 0SEND_F1 appears twice"),
    "SEND on the wrong rank": (
        COMMS,
        "1SEND_B0",
        "0SEND_F0",
        "rank 1: 0SEND_F0 is on the wrong rank: stage 0 is on rank 0",
    ),
    "SEND of no such stage": (COMMS, "1SEND_B0", "7SEND_B0", "rank 1: 7SEND_B0: there is no stage 7"),
    "SEND before its action": (COMMS, "0F1,0SEND_F1", "0SEND_F1,0F1", "rank 0: 0SEND_F1 stands before 0F1"),
    "RECV after its use": (COMMS, "1RECV_F0,1F0", "1F0,1RECV_F0", "rank 1: 1RECV_F0 stands after 1F0, which uses it"),
    "REDUCE_GRAD missing": (COMMS, ",0REDUCE_GRAD", "", "rank 0: 0REDUCE_GRAD is missing; without it the gradients"),
    "REDUCE_GRAD twice": (COMMS, "0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD", "rank 0: 0REDUCE_GRAD appears twice"),
    "REDUCE_GRAD too early": (
        COMMS,
        "1B1,1SEND_B1,1REDUCE_GRAD",
        "1REDUCE_GRAD,1B1,1SEND_B1",
        "before 1B1, the stage's last",
    ),
    "empty cell": (COMMS, "1B0,", "1B0,,", "rank 1: empty cell after 1B0; a file with communication has no idle slots"),
    "UNSHARD on the wrong rank": (COMMS, "0F0", "1UNSHARD,0F0", "rank 0: 1UNSHARD is on the wrong rank"),
    "two orders of one pair": (
        COMMS,
        "1RECV_F1,1B0,1SEND_B0,1F1",
        "1B0,1SEND_B0,1RECV_F1,1F1",
        "ranks 0 and 1 disagree on the order of their messages: number 2 is 0SEND_F1 in the row of rank 0",
    ),
    "sends that block each other": (
        "",
        "",
        ring(),
        "deadlocks with blocking sends: rank 2 cannot pass 2SEND_F0 before rank 0 passes 3RECV_F0, but that one is "
        "stuck at 0SEND_F2",
    ),
}


@pytest.mark.parametrize(
    ("good", "old", "new", "sentence"),
    [pytest.param(*case, id=kind) for kind, case in (BROKEN_CELLS | BROKEN_PROGRAMS | BROKEN_MESSAGES).items()],
)
def test_a_broken_file_is_refused_with_the_file_the_rank_the_action_and_the_rule(written, good, old, new, sentence):
    assert good.count(old) >= 1
    if good and good != FOUR:
        read_schedule(written(good))
    path = written(good.replace(old, new, 1) if old else new)
    with pytest.raises(ScheduleError) as refused:
        read_schedule(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def changed_json(**fields):
    return json.dumps({**json.loads(as_program_json(one_f_one_b(2, 2))), **fields})


ROWS = json.loads(as_program_json(one_f_one_b(2, 2)))["programs"]
BROKEN_JSON = {
    "not JSON": ('{"form": ', "is not JSON: line 1, column 10"),
    "another JSON": ('{"traceEvents": []}', 'is JSON, but no schedule: its "form" is not "suite schedule 1"'),
    "field twice": (changed_json()[:-1] + ', "name": "x"}', 'field "name" is there twice'),
    "field unknown": (changed_json(extra=1), 'field "extra" is unknown'),
    "field missing": (changed_json().replace('"chunks": 1, ', ""), 'field "chunks" is missing'),
    "name": (changed_json(name=None), '"name" is null; it must be printable text'),
    "stages": (changed_json(stages=True), '"stages" is true; it must be a whole number of at least 1'),
    "microbatches": (changed_json(microbatches=0), '"microbatches" is 0; it must be a whole number'),
    "chunks": (changed_json(chunks=1.0), '"chunks" is 1.0; it must be a whole number'),
    "too much": (changed_json(microbatches=10**12), "their product may be at most 2000000"),
    "placement": (changed_json(placement=[0, 1]), '"placement" must be a list with, for each replica'),
    "rank unused": (
        changed_json(placement=[[0, 0]]),
        '"placement" of replica 0 must have each of the ranks 0 to 1 1 times',
    ),
    "one program": (changed_json(programs=ROWS[:1]), '"programs" must be a list of 2 lists'),
    "unknown action": (
        changed_json(programs=[ROWS[0], ["X 1.0", *ROWS[1][1:]]]),
        'rank 1, action 1: "X 1.0" is no action',
    ),
    "no text": (changed_json(programs=[[None], ROWS[1]]), "rank 0, action 1: null is no action"),
    "duplicated": (changed_json(programs=[[*ROWS[0], "F 0.0"], ROWS[1]]), "rank 0: F 0.0 appears twice"),
    "wrong rank": (changed_json(programs=ROWS[::-1]), "rank 0: F 1.0 is on the wrong rank: its stage is on rank 1"),
    "no such stage": (
        changed_json(programs=[ROWS[0], ["F 2.0", *ROWS[1]]]),
        "rank 1: F 2.0 is outside the schedule's 2 virtual",
    ),
    "no such replica": (changed_json(programs=[["F 0.0'"], ROWS[1]]), "rank 0: F 0.0' is outside the schedule's"),
    "no actions": (changed_json(programs=[ROWS[0], []]), "rank 1 has no actions"),
    "missing": (changed_json(programs=[ROWS[0], ROWS[1][:-1]]), "stage 1, microbatch 1"),
    "deadlock": (changed_json(programs=[ROWS[0], ROWS[1][::-1]]), "deadlocks: rank 1 cannot run BW 1.1"),
    "deep": ('{"form": ' + "[" * 100_000, "too long or lists too deep"),
    "long": ('{"form": ' + "9" * 5000 + "}", "numbers too long"),
}


@pytest.mark.parametrize(("text", "sentence"), BROKEN_JSON.values(), ids=BROKEN_JSON)
def test_a_broken_json_is_refused_with_the_field_or_the_action(written, text, sentence):
    path = written(text)
    with pytest.raises(ScheduleError) as refused:
        read_schedule(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \r\n", "is empty"),
        (b"0F0\x00,0B0", "is not a text file"),
        (b"\x89PNG\r\n\x1a\n", "is not a text file"),
        (PLAIN.encode("utf-16"), "is not a text file"),
        (b"rank,kind,stage,microbatch\n0,F,0,0\n", "is a table of times"),
        (b"," * 2_000_001, "cells; at most 2000000"),
        (b"x" * (64 * 2**20 + 1), "is larger than 64 MiB"),
        (b"x" * 1_000_000, "is not a CSV file: field larger"),
        (b"[1, 2]", "row 1 has no action (it starts with '[1')"),
    ],
)
def test_what_is_no_schedule_at_all_is_refused(written, content, sentence):
    with pytest.raises(ScheduleError, match=re.escape(sentence)):
        read_schedule(written(content))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_schedule(tmp_path / "nowhere.csv")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    schedule=st.sampled_from([s for s in SCHEDULES if s.stages > 1]),
    form=st.sampled_from(["torch-csv", "torch-csv-comms"]),
)
def test_a_file_with_a_cell_lost_doubled_moved_or_changed_is_refused_or_a_schedule_that_proves(
    written, data, schedule, form
):
    rows = [row.split(",") for row in FORMS[form](schedule).splitlines()]
    row = data.draw(st.sampled_from(rows))
    place = data.draw(st.integers(0, len(row) - 1))
    change = data.draw(st.sampled_from(["lose", "double", "move", "change"]))
    cell = row[place] if change == "double" else row.pop(place)
    if change in ("double", "move"):
        data.draw(st.sampled_from(rows) if change == "move" else st.just(row)).insert(place, cell)
    elif change == "change":
        row.insert(place, data.draw(st.sampled_from([cell[1:], cell[:-1], "1" + cell, cell + "1", "-1F0"])))
    path = written("\n".join(map(",".join, rows)), f"{schedule.name}.csv")
    with contextlib.suppress(ScheduleError):
        read = read_schedule(path)
        assert change == "move"
        assert sorted(map(sorted, read.programs)) == sorted(map(sorted, schedule.programs))


# torch's own runtime runs what is exported.

WIDTH, ROWS_OF_A_BATCH = 5, 8


def layers(count):
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def batch():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(2, ROWS_OF_A_BATCH, WIDTH, generator=generator, dtype=torch.float64)


def torch_runs(rank, path, form, placement, microbatches):
    """Loss of every microbatch (on the last stage's rank) and every gradient of this rank's stages, by torch."""
    device = torch.device("cpu")
    modules = dict(enumerate(layers(len(placement))))
    mine = {stage: modules[stage] for stage, host in enumerate(placement) if host == rank}
    stages = [PipelineStage(module, stage, len(placement), device) for stage, module in mine.items()]
    runtime = torch_schedules._PipelineScheduleRuntime(stages, microbatches, loss_fn=nn.MSELoss())
    runtime._load_csv(path, format=form)
    inputs, targets = batch()
    losses = []
    arguments = (inputs,) if placement[0] == rank else ()
    runtime.step(*arguments, target=targets if placement[-1] == rank else None, losses=losses)
    gradients = {stage: [parameter.grad for parameter in module.parameters()] for stage, module in mine.items()}
    return [loss.item() for loss in losses], {stage: [g.tolist() for g in grads] for stage, grads in gradients.items()}


def both_ranks(path, form, placement, microbatches):
    return torch_runs(torch.distributed.get_rank(), path, form, placement, microbatches)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("form", "torchs"), [("torch-csv", "compute_only"), ("torch-csv-comms", "compute_comms")], ids=lambda form: form
)
@pytest.mark.parametrize(
    "schedule", [one_f_one_b(2, 4), interleaved(2, 4, 2), ZB_V], ids=lambda schedule: schedule.name
)
def test_torch_runs_what_is_exported_with_the_results_of_the_whole_model(written, schedule, form, torchs):
    path = str(written(FORMS[form](schedule)))
    placement = schedule.placement[0]
    results = run_ranks(2, both_ranks, path, torchs, placement, schedule.microbatches)

    model = nn.Sequential(*layers(len(placement)))
    losses = []
    for inputs, targets in zip(*(half.chunk(schedule.microbatches) for half in batch()), strict=True):
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / schedule.microbatches).backward()
        losses.append(loss.item())
    assert results[placement[-1]][0] == pytest.approx(losses, abs=1e-12)
    found = results[0][1] | results[1][1]
    assert sorted(found) == list(range(len(placement)))
    for stage, module in enumerate(model):
        for parameter, gradient in zip(module.parameters(), found[stage], strict=True):
            torch.testing.assert_close(torch.tensor(gradient, dtype=torch.float64), parameter.grad, rtol=0, atol=1e-12)
