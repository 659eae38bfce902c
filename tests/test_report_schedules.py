"""What the report says of schedules: ideal bubbles, activations in flight, and where times were given."""

import csv
import math
import random
from types import SimpleNamespace

import pytest
from report_records import record_of, written

from suite.console import SweepProgress
from suite.experiment.point import Point
from suite.pipeline.generators import generate
from suite.pipeline.readiness import settled
from suite.pipeline.timeline import Costs, timeline
from suite.records.schema import Trace
from suite.report import ideal as ideals
from suite.report import traces
from suite.report.beside import Box, places
from suite.report.explain import explain
from suite.report.ideal import EQUAL, FORMULA, PACED, ideal
from suite.report.metrics import metrics
from suite.report.page import write_report
from suite.report.predicted import predicted, traced
from suite.report.summary import launches_of, rows_of, summarise
from suite.report.tables import cells, detail_columns, footnotes, rows, text_table
from suite.report.traces import timelines
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
def test_activations_in_flight_are_the_highest_of_any_rank(schedule, chunks, peak):
    record = record_of((1, 4, 1), schedule, chunks)
    assert metrics(record).peak_activations == peak
    assert f"{peak} microbatches of a rank's share at most" in explain(record)


def test_activations_in_flight_are_in_the_report(tmp_path):
    record, peak = record_of((1, 4, 1), "v-min", 2), 2
    report = write_report("One", written(tmp_path / "store", record), [], tmp_path / "out")
    (line,) = csv.DictReader((tmp_path / "out" / "data.csv").open())
    assert float(line["peak_activations"]) == peak
    columns = detail_columns(report.table)
    (shown,) = cells(report.table, columns)
    assert float(dict(zip([c.heading for c in columns], shown, strict=True))["activations in flight"]) == peak


def test_a_readiness_driven_schedule_is_taken_in_the_order_that_it_gets():
    point = Point.model_validate(record_of((1, 4, 1)).point | {"schedule": {"name": "readiness", "cap": 3}})
    found = ideal(point, paced=False)
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


def ran(record):
    """The record with the timeline of its own program at F=1, B=W=1 s as its trace, every start twice as late."""
    point = Point.model_validate(record.point)
    schedule = generate(point.schedule, point.parallel.pipeline, point.microbatches)
    found = [
        {
            "rank": span.rank,
            "kind": span.action.kind,
            "stage": span.action.stage,
            "microbatch": span.action.microbatch,
            "replica": span.action.replica,
            "start": 2 * span.start,
            "end": 2 * span.start + (span.end - span.start),
        }
        for row in timeline(settled(schedule, Costs())).ranks
        for span in row
    ]
    return record.model_copy(update={"trace": Trace.model_validate({"iteration": 6, "spans": found})})


def shown(tmp_path, *records):
    return timelines(rows_of(launches_of(written(tmp_path, *records))[0]))


def boxes(figure):
    """Of each collection of boxes: colour, edge's width and how many."""
    return [
        (tuple(one.get_facecolor()[0]), one.get_linewidth()[0], len(one.get_paths()))
        for one in figure.axes[0].collections
    ]


def legend_of(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


@pytest.mark.parametrize("source", ["measured", "emulated"])
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("zb-v", 2), ("chimera", 1)])
def test_the_prediction_lies_above_what_ran(schedule, chunks, source, tmp_path):
    (found,) = shown(tmp_path, ran(record_of((1, 4, 1), schedule, chunks, source=source)))
    made = timeline(generate(Point.model_validate(record_of((1, 4, 1), schedule, chunks).point).schedule, 4, 8))
    assert f"It takes {1000 * made.makespan:.4g} ms" in found.caption
    assert f"the bubbles are {100 * made.bubble_over_ideal:.3g} % and " in found.caption
    assert "thin: predicted from the mean times" in legend_of(found.figure)
    assert sum(many for _, _, many in boxes(found.figure)) == 2 * sum(map(len, made.ranks))


def test_what_is_simulated_has_no_prediction_beside_it(tmp_path):
    (found,) = shown(tmp_path, ran(record_of((1, 4, 1), source="simulated")))
    assert "predicted" not in found.caption + str(legend_of(found.figure))


def test_a_trace_of_another_program_is_drawn_without_a_prediction(tmp_path):
    (found,) = shown(tmp_path, record_of((1, 4, 1)))
    assert "Nothing is predicted from the mean times: it ran another program" in found.caption
    (crowded,) = shown(tmp_path / "crowded", ran(record_of((1, 4, 1), oversubscribed=True)))
    assert "It takes" in crowded.caption
    assert "bubbles" not in crowded.caption, "the ranks waited for each other"


def test_a_readiness_driven_iteration_is_predicted_in_the_order_that_it_gets():
    point = Point.model_validate(record_of((1, 4, 1)).point | {"schedule": {"name": "readiness", "cap": 4}})
    record = ran(record_of((1, 4, 1)).model_copy(update={"point": point.model_dump(mode="json")}))
    found = predicted(point, traced(record.trace))
    schedule = generate(point.schedule, 4, 8)
    assert found.makespan == timeline(settled(schedule, Costs())).makespan


def test_chunks_are_those_of_the_rank_and_replicas_have_dark_edges(tmp_path):
    (zigzag,) = shown(tmp_path / "v", ran(record_of((1, 4, 1), "zb-v", 2, source="simulated")))
    per_colour = {colour: many for colour, _, many in boxes(zigzag.figure)}
    assert sorted(per_colour.values()) == [32] * 6, "two chunks of three kinds, each on every rank"
    assert "lighter: later chunks of the rank" in legend_of(zigzag.figure)
    (both,) = shown(tmp_path / "both", ran(record_of((1, 4, 1), "chimera", source="simulated")))
    widths = [width for _, width, many in boxes(both.figure) for _ in range(many)]
    assert len(set(widths)) == 2
    assert widths.count(max(widths)) == 32, "half of the microbatches"
    assert "dark edge, ': replica 1" in legend_of(both.figure)
    texts = [text.get_text() for text in both.figure.axes[0].texts]
    assert {"0", "1'"} <= set(texts)
    assert "1" not in texts


def test_no_more_timelines_than_a_page_can_take(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_TIMELINES", 2)
    records = [
        record_of((1, 4, 1), name, source=source) for name in ("1f1b", "gpipe") for source in ("emulated", "measured")
    ]
    found = shown(tmp_path, *records)
    assert [one.heading for one in found] == ["Timeline, 1f1b, measured", "Timeline, gpipe, measured"]
    assert found[1].caption.endswith(
        " 2 more timelines are not drawn (emulated: 1f1b, gpipe); suite schedule --trace draws any record's."
    )
    assert "not drawn" not in found[0].caption
