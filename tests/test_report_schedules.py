"""What the report says of schedules: ideal bubbles, activations in flight, and where times were given."""

import csv
import math
import random
from types import SimpleNamespace

import pytest
from report_records import record_of, written

from suite.console import SweepProgress
from suite.experiment.point import Point
from suite.report import ideal as ideals
from suite.report.beside import Box, places
from suite.report.explain import explain
from suite.report.ideal import EQUAL, FORMULA, PACED, ideal
from suite.report.metrics import metrics
from suite.report.page import write_report
from suite.report.summary import summarise
from suite.report.tables import cells, detail_columns, footnotes, rows, text_table
from suite.report.tradeoff import tradeoff

PACE = {"forward": 0.02, "input_gradient": 0.03, "weight_gradient": 0.01}
UNTRAINED = {"loss": None, "grad_norm": None}


def given_times(record):
    """The record as an emulated or simulated launch leaves it: without losses, memory and peak."""
    timed = record.iterations.model_copy(update=UNTRAINED)
    ranks = [rank.model_copy(update={"peak_memory_bytes": None}) for rank in record.ranks]
    environment = {"host": "node-1", "device": "cpu", "peak_reason": "the times of the actions are given"}
    return record.model_copy(update={"iterations": timed, "ranks": ranks, "environment": environment})


def test_the_papers_formula_stays_where_it_holds():
    for source in ("measured", "emulated"):
        found = metrics(record_of((1, 2, 1), "interleaved", 2, source=source, pace=PACE))
        assert (found.ideal_bubble, found.ideal_basis, found.ideal_note) == (1 / 16, FORMULA, None)


@pytest.mark.parametrize(
    ("schedule", "chunks", "slots"),  # idle slots of a rank's F by the schedules' own papers, p=4, m=8, F=B=W
    [("zb-h1", 1, 3), ("2bp-1f1b", 1, 3), ("2bp-gpipe", 1, 6), ("looped-bfs", 2, 4.5), ("dualpipe", 1, 1)],
)
def test_other_schedules_are_simulated_with_equal_costs(schedule, chunks, slots):
    found = metrics(record_of((1, 4, 1), schedule, chunks, pace=PACE))
    assert found.ideal_basis == EQUAL
    assert found.ideal_bubble == pytest.approx(slots / 24)


@pytest.mark.parametrize("source", ["emulated", "simulated"])
def test_where_times_are_given_they_are_those_of_the_ideal(source):
    found = metrics(record_of((1, 4, 1), "zb-h1", source=source, pace=PACE))
    assert found.ideal_basis == PACED
    assert found.ideal_bubble == pytest.approx(3 * (0.02 + 0.03 - 0.01) / (8 * 0.06))


@pytest.mark.parametrize(
    ("schedule", "chunks", "peak"),
    [("gpipe", 1, 8), ("1f1b", 1, 4), ("interleaved", 2, 5.5), ("zb-h2", 1, 7), ("v-min", 2, 2), ("dualpipe", 1, 5)],
)
def test_activations_in_flight_are_the_highest_of_any_rank(schedule, chunks, peak, tmp_path):
    record = record_of((1, 4, 1), schedule, chunks)
    assert metrics(record).peak_activations == peak
    assert f"{peak} microbatches of a rank's share at most" in explain(record)
    report = write_report("One", written(tmp_path / "store", record), [], tmp_path / "out")
    (line,) = csv.DictReader((tmp_path / "out" / "data.csv").open())
    assert float(line["peak_activations"]) == peak
    columns = detail_columns(report.table)
    (shown,) = cells(report.table, columns)
    assert float(dict(zip([c.heading for c in columns], shown, strict=True))["activations in flight"]) == peak


def test_a_readiness_driven_schedule_is_taken_in_the_order_that_it_gets():
    point = Point.model_validate(record_of((1, 4, 1)).point | {"schedule": {"name": "readiness", "cap": 3}})
    found = ideal(point, "measured")
    assert found.basis == EQUAL
    assert max(found.peaks) <= 3


def test_a_huge_program_has_no_ideal_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(ideals, "MOST_SIMULATED", 95)
    ideals._simulated.cache_clear()
    large, small, formula = (record_of((1, 4, 1), name) for name in ("zb-h1", "chimera", "1f1b"))
    assert metrics(large).ideal_bubble is None
    assert metrics(small).ideal_bubble is not None
    monkeypatch.setattr(ideals, "MOST_SIMULATED", 10)
    ideals._simulated.cache_clear()
    assert (metrics(formula).ideal_bubble, metrics(formula).peak_activations) == (3 / 8, None)
    records = written(tmp_path, large, formula)
    table = summarise(records)
    assert [math.isnan(bubble) for bubble in table.bubble_ideal_percent] == [False, True]
    notes = footnotes(table)
    assert f"{large.point_id}: no ideal bubble: the program has more than the 10 actions" in "\n".join(notes)
    assert f"{formula.point_id}: no activations in flight: the program has more" in "\n".join(notes)
    assert "no ideal bubble: the program has more than" in explain(records[1])
    ideals._simulated.cache_clear()


def test_a_schedule_is_simulated_once(monkeypatch):
    ideals._simulated.cache_clear()
    calls, generate = [], ideals.generate
    monkeypatch.setattr(ideals, "generate", lambda *sizes: calls.append(sizes) or generate(*sizes))
    for launch in range(3):
        metrics(record_of((1, 4, 1), "zb-h1", launch=launch))
        metrics(record_of((2, 4, 1), "zb-h1", launch=launch))
    assert len(calls) == 1


def test_the_footnote_says_which_ideal_is_which(tmp_path):
    records = [record_of((1, 4, 1)), record_of((1, 4, 1), "zb-h1"), record_of((1, 4, 1), "zb-h1", source="simulated")]
    (note,) = [n for n in footnotes(summarise(written(tmp_path, *records))) if n.startswith("ideal bubble")]
    assert note == f"ideal bubble: {FORMULA} for 1f1b; {EQUAL} for zb-h1; {PACED} for zb-h1"
    alone = footnotes(summarise(written(tmp_path / "alone", records[0])))
    assert alone == [], "the formula alone needs no words"


def test_the_ideal_is_explained_so_that_it_can_be_redone():
    text = explain(record_of((1, 4, 1), "zb-h1"))
    assert "event simulation of zb-h1, p=4, m=8, with F=B=W=1" in text
    assert "(makespan-W)/W = (27.0-24.0)/24.0 = 12.5 %" in text
    given = explain(given_times(record_of((1, 4, 1), "zb-h1", source="emulated", pace=PACE)))
    assert "with F=0.02 B=0.03 W=0.01 s" in given


@pytest.mark.parametrize("source", ["emulated", "simulated"])
def test_where_times_are_given_every_rate_says_so(source, tmp_path, capsys):
    pair = (given_times(record_of(layout, source=source)) for layout in ((1, 1, 1), (1, 4, 1)))
    records = written(tmp_path / "store", *pair)
    report = write_report("Given", records, [], tmp_path / "out")
    assert [row["source"] for row in rows(report.table)] == [source] * 2
    assert report.table.speedup.isna().all(), "a rank's share takes the given time however small it is"
    said = f"{source}: the point's pace gives the times of the actions"
    for text in (text_table(report.table), (tmp_path / "out" / "index.html").read_text().replace("&#39;", "'")):
        assert said in text
        assert "no percentage of peak" not in text.partition("<dl")[0], "the source's line says it of all"
    assert "say nothing of a device" in explain(records[0])
    for record in records:
        SweepProgress(1).end(SimpleNamespace(point=Point.model_validate(record.point)), record)
        assert capsys.readouterr().out.rstrip().endswith(f" tokens/s, {source}")


KINDS = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-v", 2), ("chimera", 1))


def drawn(tmp_path, *records):
    return tradeoff(summarise(written(tmp_path, *records)))


def texts(figure):
    return [[text.get_text() for text in axes.texts] for axes in figure.axes]


def test_bubble_against_memory_has_a_point_per_schedule_and_a_panel_per_size(tmp_path):
    records = [record_of((1, p, 1), *kind, batch=batch) for kind in KINDS for p, batch in ((4, 8), (2, 16))]
    records += [given_times(record_of((1, 4, 1), *kind, source="emulated")) for kind in KINDS]
    (found,) = drawn(tmp_path, *records)
    assert [axes.get_title(loc="left") for axes in found.figure.axes] == ["p=2, m=16", "p=4, m=8"]
    for labels in texts(found.figure):
        assert sorted("\n".join(labels).split("\n")) == sorted(
            ["1f1b", "chimera", "gpipe", "interleaved v=2", "zb-v v=2"]
        )
    markers = [
        {line.get_marker(): len(line.get_xdata()) for line in axes.get_lines() if line.get_linestyle() == "None"}
        for axes in found.figure.axes
    ]
    assert [{kind: many for kind, many in one.items() if many} for one in markers] == [{"o": 5}, {"o": 5, "s": 5}]
    across = next(list(line.get_xdata()) for line in found.figure.axes[1].get_lines() if line.get_marker() == "o")
    assert sorted(across) == [4, 4, 4, 5.5, 8]
    assert "chimera holds the weights twice" in found.caption
    assert "left out" not in found.caption


def test_bubble_against_memory_says_what_is_left_out(tmp_path):
    few = [record_of((1, 4, 1), *kind) for kind in KINDS[:2]]
    assert drawn(tmp_path / "few", *few) == []
    crowded = record_of((1, 4, 1), *KINDS[2], oversubscribed=True)
    assert drawn(tmp_path / "crowded", *few, crowded) == []
    (found,) = drawn(tmp_path / "more", *few, crowded, record_of((1, 4, 1), *KINDS[3]), record_of((1, 2, 1)))
    assert "1 oversubscribed points make no claim and are left out" in found.caption
    assert "1 other points are left out" in found.caption
    assert "interleaved" not in str(texts(found.figure))


def test_labels_cover_no_point_and_no_other_label():
    noise = random.Random(1)
    groups = [[(noise.uniform(20, 380), noise.uniform(20, 180))] for _ in range(19)]
    sizes = [(noise.uniform(15, 60), 8.0) for _ in groups]
    frame = Box(0, 0, 400, 200)
    boxes = [place.box for place in places(groups, sizes, frame, 5.0)]
    points = [Box(x - 2.5, y - 2.5, x + 2.5, y + 2.5) for ((x, y),) in groups]
    for number, box in enumerate(boxes):
        assert box.within(frame)
        assert all(box.overlap(other) == 0 for other in [*boxes[:number], *points])
