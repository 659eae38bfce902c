"""Drawings and exports of a small schedule: what each of them says is the schedule."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from itertools import pairwise

import pytest

from suite.pipeline import drawing
from suite.pipeline.drawing import COLOURS, Panel, as_csv, as_perfetto, as_svg, as_text
from suite.pipeline.generators.interleaved import interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.program import Action
from suite.pipeline.timeline import Costs, Span, Timeline, timeline

SMALL = one_f_one_b(2, 3)
SVG = "{http://www.w3.org/2000/svg}"


def panel(schedule, costs=None, title="title"):
    return Panel(title, timeline(schedule, costs))


def row(rank, *actions, time=1.0):
    """One action after the other, each taking `time`."""
    return tuple(Span(rank, action, time * place, time * (place + 1)) for place, action in enumerate(actions))


# Two ranks of a V (stages 0 and 3, 1 and 2) and, on rank 0, every kind of action and the second replica.
MIXED = Panel(
    "mixed",
    Timeline(
        (
            row(
                0,
                Action("F", 0, 0), Action("F", 3, 0), Action("B", 3, 0), Action("W", 3, 0), Action("R", 0, 0),
                Action("BW", 0, 0), Action("F", 1, 1, replica=1), Action("BW", 1, 1, 2, 1),
            ),
            row(1, Action("F", 1, 0), Action("F", 2, 0), Action("BW", 2, 0)),
        )
    ),
)  # fmt: skip


def shown(text):
    """The cells of every rank's row."""
    return [line.partition("|")[2].rstrip("|").replace(".", " ").split() for line in text.splitlines() if "|" in line]


def test_text_of_1f1b_shows_every_action_in_its_time():
    assert as_text([panel(SMALL)]).splitlines() == [
        "rank  0 |0  1  ......B0    2  B1    ...B2    |",
        "rank  1 |...0  B0    1  B1    2  B2    ......|",
        "0 forward, B0 backward, . idle; a column is 0.3333",
    ]


def test_text_names_the_chunk_of_later_chunks():
    text = as_text([panel(interleaved(2, 2, 3))])
    assert len({len(line) for line in text.splitlines()[:-1]}) == 1
    wanted = Counter(f"{kind}{i}{mark}" for kind in ("", "B") for i in (0, 1) for mark in ("", "a", "b"))
    assert [Counter(cells) for cells in shown(text)] == [wanted, wanted]
    assert "a, b later chunks of the rank" in text


def test_text_tells_kinds_replicas_slices_and_the_chunks_of_a_v_apart():
    text = as_text([MIXED])
    assert shown(text) == [
        ["0/0", "0/0a", "I0/0a", "W0/0a", "R0/0", "B0/0", "1/0'", "B1/2'"],
        ["0/0", "0/0a", "B0/0a"],
    ]
    assert text.splitlines()[-1] == (
        "0 forward, B0 backward, I0 input gradient, W0 weight gradient, R0 recomputation, /1 slice 1 of the sequence, "
        "a later chunks of the rank, ' replica 1, . idle; a column is 0.1429"
    )


def test_more_chunks_than_letters_have_marks_of_their_own():
    cells = shown(as_text([Panel("deep", Timeline((row(0, *(Action("F", stage, 0) for stage in range(60))),)))]))[0]
    assert cells[:2] + cells[26:28] == ["0", "0a", "0z", "0aa"]
    assert len(set(cells)) == 60


def test_text_is_cut_at_the_width():
    lines = as_text([panel(SMALL)], width=20).splitlines()[:-1]
    assert [len(line) for line in lines] == [20, 20]
    assert all(line.endswith("…") for line in lines)
    whole = as_text([panel(SMALL)]).splitlines()[0]
    assert lines[0][:19] == whole[:19]
    assert as_text([panel(SMALL)], width=len(whole)).splitlines()[0] == whole
    assert as_text([panel(SMALL)], width=len(whole) - 1).splitlines()[0].endswith("…")


def test_text_that_is_not_cut_at_a_width_still_ends(monkeypatch):
    monkeypatch.setattr(drawing, "_MOST_CHARACTERS", 4000)
    lines = as_text([panel(one_f_one_b(2, 300))]).splitlines()[:-1]
    assert [len(line) for line in lines] == [2000, 2000]


def test_text_of_unequal_costs_keeps_the_ranks_aligned():
    lines = as_text([panel(SMALL, Costs(0.7, 1.1, 0.4))]).splitlines()[:-1]
    assert len({len(line) for line in lines}) == 1


def test_an_action_that_is_too_short_for_its_number_does_not_move_the_others():
    spans = tuple(
        Span(0, Action("F", 0, i), start, end) for i, (start, end) in enumerate([(0, 1), (1, 1.001), (2, 3), (3, 5)])
    )
    lines = as_text([Panel("measured", Timeline((spans,)))]).splitlines()
    scale = 2 / (sum(span.end - span.start for span in spans) / 4)
    assert len(lines[0]) == len("rank  0 ||") + round(5 * scale)
    assert lines[0][9 + round(2 * scale)] == "2"
    assert lines[0][9 + round(3 * scale)] == "3"


def test_text_of_several_timelines_has_titles_and_one_scale():
    text = as_text([panel(SMALL, title="one"), panel(SMALL, Costs(2, 2, 2), title="two")], unit=" s")
    lines = text.splitlines()
    assert (lines[0], lines[3]) == ("one", "two")
    prefix = len("rank  0 ||")
    assert len(lines[4]) - prefix == 2 * (len(lines[1]) - prefix)
    assert lines[-1].endswith("a column is 0.3333 s")


def svg(*panels, unit=""):
    return ElementTree.fromstring(as_svg(panels, unit))


def boxes(root):
    """The actions' boxes, which have titles; the legend's have none."""
    return [box for box in root.findall(f"{SVG}rect") if box.find(f"{SVG}title") is not None]


def test_svg_is_xml_with_a_box_and_a_title_for_every_action():
    root = svg(panel(SMALL, title='a "title" with <marks> & more'))
    titles = Counter(box.findtext(f"{SVG}title") for box in boxes(root))
    assert titles == Counter(str(action) for program in SMALL.programs for action in program)
    assert root.find(f"{SVG}text").text == 'a "title" with <marks> & more'
    labels = [text.text for text in root.findall(f"{SVG}text")]
    assert labels[1] == "rank 0"
    assert "rank 1" in labels


def test_svg_boxes_are_as_wide_as_their_actions_and_do_not_overlap():
    rows = {}
    for box in boxes(svg(panel(SMALL))):
        left, width = float(box.get("x")), float(box.get("width"))
        rows.setdefault(box.get("y"), []).append((left, left + width, box.get("fill")))
    assert len(rows) == 2
    for row in rows.values():
        assert all(end <= start + 0.02 for (_, end, _), (start, _, _) in pairwise(row))
        forward = next(right - left for left, right, fill in row if fill == COLOURS["F"])
        backward = next(right - left for left, right, fill in row if fill == COLOURS["BW"])
        assert backward == pytest.approx(2 * forward, abs=0.02)


def test_svg_of_several_timelines_stacks_them_on_one_axis():
    root = svg(panel(SMALL, title="one"), panel(SMALL, Costs(2, 2, 2), title="two"), unit=" s")
    rows = {}
    for box in boxes(root):
        rows.setdefault(float(box.get("y")), []).append(float(box.get("x")) + float(box.get("width")))
    ends = [max(row) for _, row in sorted(rows.items())]
    left = min(float(box.get("x")) for box in boxes(root))
    assert ends[2] - left == pytest.approx(2 * (ends[0] - left), abs=0.02)
    texts = {text.text: (float(text.get("x")), float(text.get("y"))) for text in root.findall(f"{SVG}text")}
    assert texts["one"][1] < min(rows) < texts["two"][1] < max(rows) < texts["10 s"][1]
    assert texts["20 s"][0] - texts["10 s"][0] == pytest.approx(10 / 24 * (ends[2] - left), abs=0.02)
    assert float(root.get("viewBox").split()[3]) > texts["10 s"][1]


def test_svg_gives_kinds_chunks_and_replicas_a_look_and_a_legend():
    root = svg(MIXED)
    looks = {
        box.findtext(f"{SVG}title"): (box.get("fill"), box.get("fill-opacity"), box.get("stroke"))
        for box in boxes(root)
    }
    assert looks["F 0.0"] == (COLOURS["F"], "1.00", "white")
    assert looks["F 3.0"] == (COLOURS["F"], "0.45", "white")
    assert looks["F 1.0"] == (COLOURS["F"], "1.00", "white")
    assert looks["F 2.0"] == (COLOURS["F"], "0.45", "white")
    assert [looks[f"{kind} {stage}.0"][0] for kind, stage in (("B", 3), ("W", 3), ("R", 0), ("BW", 0))] == [
        COLOURS[kind] for kind in ("B", "W", "R", "BW")
    ]
    assert looks["F 1.1'"][:2] == looks["F 1.0"][:2]
    assert looks["F 1.1'"][2] != "white"
    assert len(set(COLOURS.values())) == 5
    legend = root.find(f"{SVG}g[@class='legend']")
    assert [text.text for text in legend.findall(f"{SVG}text")] == [
        "forward", "backward", "input gradient", "weight gradient", "recomputation", "lighter: later chunk of the rank",
        "outlined: replica 1",
    ]  # fmt: skip
    plain = svg(panel(SMALL)).find(f"{SVG}g[@class='legend']")
    assert [text.text for text in plain.findall(f"{SVG}text")] == ["forward", "backward"]


def test_csv_has_every_action_with_its_times():
    rows = list(csv.DictReader(io.StringIO(as_csv(timeline(SMALL)))))
    assert len(rows) == 2 * 2 * 3
    assert rows[0] == {
        "rank": "0",
        "kind": "F",
        "stage": "0",
        "microbatch": "0",
        "slice": "0",
        "replica": "0",
        "start": "0.0",
        "end": "1.0",
    }
    for rank, program in enumerate(SMALL.programs):
        mine = [row for row in rows if row["rank"] == str(rank)]
        assert [(r["kind"], int(r["stage"]), int(r["microbatch"])) for r in mine] == [a[:3] for a in program]
        assert sum(float(r["end"]) - float(r["start"]) for r in mine) == 9


def test_perfetto_durations_sum_to_the_work_of_every_rank():
    drawn = panel(SMALL, Costs(1, 2, 3))
    trace = json.loads(as_perfetto([drawn], unit_seconds=0.5))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for rank, program in enumerate(SMALL.programs):
        mine = [event for event in events if event["tid"] == rank]
        assert [event["name"] for event in mine] == [str(action) for action in program]
        assert sum(event["dur"] for event in mine) == pytest.approx(3 * (1 + 2 + 3) * 0.5e6)
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(mine))
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(drawn.timeline.makespan * 0.5e6)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["title", "rank 0", "rank 1"]


def test_perfetto_has_a_process_for_every_timeline():
    events = json.loads(as_perfetto([panel(SMALL, title="one"), panel(SMALL, Costs(2, 2, 2), "two")]))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "one", 1: "two"}
    ends = [max(e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["pid"] == process) for process in (0, 1)]
    assert ends == pytest.approx([12e3, 24e3])
