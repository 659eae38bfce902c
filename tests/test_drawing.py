"""Drawings and exports of a small schedule: what each of them says is the schedule."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from suite.pipeline.drawing import COLOURS, as_csv, as_perfetto, as_svg, as_text
from suite.pipeline.generators.interleaved import interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.program import Action
from suite.pipeline.timeline import Costs, timeline

SMALL = one_f_one_b(2, 3)
SPLIT = replace(
    one_f_one_b(1, 1), programs=((Action("F", 0, 0), Action("B", 0, 0), Action("W", 0, 0)),)
)  # B and W apart
SVG = "{http://www.w3.org/2000/svg}"


def test_text_of_1f1b_shows_every_action_in_its_time():
    assert as_text(timeline(SMALL), 1).splitlines() == [
        "rank  0 |0  1  ......B0    2  B1    ...B2    |",
        "rank  1 |...0  B0    1  B1    2  B2    ......|",
    ]


def test_text_names_the_chunk_of_later_chunks():
    text = as_text(timeline(interleaved(2, 2, 3)), 3)
    assert len({len(line) for line in text.splitlines()}) == 1
    assert Counter(text.replace("|", " ").replace(".", " ").split()) >= Counter(
        f"{kind}{i}{mark}" for kind in ("", "B") for i in (0, 1) for mark in ("", "a", "b") for _ in range(2)
    )


def test_text_is_cut_at_the_width():
    lines = as_text(timeline(SMALL), 1, width=20).splitlines()
    assert [len(line) for line in lines] == [20, 20]
    assert all(line.endswith("…") for line in lines)


def test_text_of_unequal_costs_keeps_the_ranks_aligned():
    lines = as_text(timeline(SMALL, Costs(0.7, 1.1, 0.4)), 1).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_svg_is_xml_with_a_box_and_a_title_for_every_action():
    root = ElementTree.fromstring(as_svg(timeline(SMALL), 'a "title" with <marks> & more'))
    boxes = root.findall(f"{SVG}rect")
    shown = Counter(box.findtext(f"{SVG}title") for box in boxes)
    assert shown == Counter(str(action) for program in SMALL.programs for action in program)
    assert root.find(f"{SVG}text").text == 'a "title" with <marks> & more'
    labels = [text.text for text in root.findall(f"{SVG}text")]
    assert labels[1] == "rank 0"
    assert "rank 1" in labels


def test_svg_boxes_are_as_wide_as_their_actions_and_do_not_overlap():
    root = ElementTree.fromstring(as_svg(timeline(SMALL), "title"))
    rows = {}
    for box in root.findall(f"{SVG}rect"):
        left, width = float(box.get("x")), float(box.get("width"))
        rows.setdefault(box.get("y"), []).append((left, left + width, box.get("fill")))
    assert len(rows) == 2
    for row in rows.values():
        assert all(end <= start + 0.02 for (_, end, _), (start, _, _) in pairwise(row))
        forward = next(right - left for left, right, fill in row if fill == COLOURS["F"])
        backward = next(right - left for left, right, fill in row if fill == COLOURS["BW"])
        assert backward == pytest.approx(2 * forward, abs=0.02)


def test_svg_fades_later_chunks():
    root = ElementTree.fromstring(as_svg(timeline(interleaved(2, 2, 2)), "title", chunks=2))
    assert {box.get("fill-opacity") for box in root.findall(f"{SVG}rect")} == {"1.00", "0.45"}


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
    times = timeline(SMALL, Costs(1, 2, 3))
    trace = json.loads(as_perfetto(times.ranks, unit_seconds=0.5))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for rank, program in enumerate(SMALL.programs):
        mine = [event for event in events if event["tid"] == rank]
        assert [event["name"] for event in mine] == [str(action) for action in program]
        assert sum(event["dur"] for event in mine) == pytest.approx(3 * (1 + 2 + 3) * 0.5e6)
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(mine))
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(times.makespan * 0.5e6)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["rank 0", "rank 1"]
