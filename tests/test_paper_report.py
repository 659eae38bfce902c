"""The paper's figures in a report: matching, differences by hand, what shares an axis, and where numbers come from."""

import re
from dataclasses import replace

import pytest
from paper_records import (
    BREAKDOWN,
    FIGURE_12,
    RATES,
    experiment_of,
    points_of,
    predicted_memory,
    record_at,
    seconds_at,
    simulated_figure_12,
    stored,
)

from suite.experiment.errors import BadInput
from suite.experiment.point import Point
from suite.records.published import PublishedRow, published
from suite.records.store import read_stores
from suite.report.page import write_report
from suite.report.paper.comparison import compare
from suite.report.paper.difference import Difference, accuracy, difference, printed_interval
from suite.report.paper.differences import MISSING, difference_table, loose_rows
from suite.report.paper.drawing import curves_of, panels_of, paper_figure
from suite.report.paper.matching import disagreements, matched
from suite.report.paper.plot import plot_of
from suite.report.paper.section import paper_sections

ROW = PublishedRow(line=2, source="someone", metric="tflops_per_gpu", value=82.0, unit="TFLOP/s", printed="82")


@pytest.fixture
def figure_12(tmp_path):
    return experiment_of(tmp_path)


def compared(experiment, root, records):
    return compare(experiment, plot_of(experiment), stored(root, experiment, records))


def laptop_records(experiment, source, factor=1.0, **changes):
    """Records at the laptop's scale; interleaving takes nine tenths of the time."""
    return [
        record_at(
            *(experiment, "laptop", point),
            factor * point.training.global_batch * (1.0 if point.schedule.name == "1f1b" else 0.9),
            source,
            **{"environment": {}, "breakdown_seconds": None} | changes,
        )
        for point in points_of(experiment, "laptop")
    ]


# The printed value and its interval


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("119", 118.5, 119.5), ("3.9", 3.85, 3.95), ("502.0", 501.95, 502.05), ("0.0", -0.05, 0.05), ("2e3", 1500, 2500)],
)
def test_a_printed_number_stands_for_half_a_unit_of_its_last_digit_to_both_sides(text, low, high):
    assert printed_interval(text) == pytest.approx((low, high))


def test_a_text_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"'about 5' is no printed number"):
        printed_interval("about 5")


@pytest.mark.parametrize(
    ("value", "printed", "plain", "beyond"),
    [
        (121.0, "119", 100 * 2 / 119, 100 * 1.5 / 119.5),
        (110.0, "119", -100 * 9 / 119, -100 * 8.5 / 118.5),
        (119.4, "119", 100 * 0.4 / 119, 0.0),
        (0.02, "0.0", None, 0.0),
        (0.0, "0", 0.0, 0.0),
    ],
)
def test_errors_by_hand(value, printed, plain, beyond):
    found = difference(value, printed)
    assert found.beyond == pytest.approx(beyond)
    assert found.plain == (None if plain is None else pytest.approx(plain))


def test_mean_and_largest_are_of_absolute_errors():
    found = accuracy([Difference(2.0, 1.0), Difference(-4.0, -3.0), Difference(None, 0.0)])
    assert (found.points, found.mape, found.largest) == (3, 2.0, 4.0)
    assert (found.mape_beyond, found.largest_beyond) == (pytest.approx(4 / 3), 3.0)
    assert accuracy([]) is None


# Which point a row is of


def point_with(**changes):
    """Figure 12's first point, with sections changed."""
    sections = {
        "model": {"layers": 96, "hidden_size": 12288, "heads": 96},
        "parallel": {"tensor": 8, "pipeline": 12, "data": 1, "scatter_gather": True},
        "schedule": {"name": "1f1b"},
        "training": {"global_batch": 12, "recompute": "full"},
    }
    return Point.model_validate({name: fields | changes.pop(name, {}) for name, fields in sections.items()} | changes)


def published_12(schedule, batch):
    rows = [row for row in published("narayanan2021") if row.table == "Figure 12" and row.global_batch == batch]
    (found,) = [row for row in rows if row.schedule_name == schedule]
    return found


def test_the_papers_row_is_of_the_point_of_its_configuration():
    assert disagreements(published_12("1f1b", 12), point_with()) == []


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"model": {"layers": 95}}, ["layers"]),
        ({"model": {"hidden_size": 6144}}, ["hidden"]),
        ({"model": {"seq_length": 1024}}, ["seq"]),
        ({"parallel": {"tensor": 4}}, ["n_gpus", "tp"]),
        ({"parallel": {"pipeline": 6, "data": 2}}, ["pp", "dp"]),
        ({"parallel": {"scatter_gather": False}}, ["scatter_gather"]),
        ({"schedule": {"name": "interleaved", "chunks": 4}}, ["vpp", "schedule_name"]),
        ({"training": {"global_batch": 24}}, ["global_batch"]),
        ({"training": {"microbatch": 2}}, ["microbatch"]),
        ({"training": {"recompute": "none"}}, ["recompute"]),
        ({"kernels": "reference"}, ["fused"]),
    ],
)
def test_a_row_is_of_no_other_configuration(changes, columns):
    assert disagreements(published_12("1f1b", 12), point_with(**changes)) == columns


def test_an_empty_cell_agrees_with_anything_and_what_one_rank_has_no_use_for_is_not_compared():
    assert disagreements(ROW, point_with()) == []
    alone = {"tensor": 1, "pipeline": 1, "data": 1, "scatter_gather": False}
    row = replace(ROW, scatter_gather=True, zero_stage=3, schedule="1F1B-interleaved", seq_parallel=True)
    assert disagreements(row, point_with(parallel=alone)) == []
    assert disagreements(row, point_with(parallel={"data": 2})) == ["schedule_name", "seq_parallel", "zero_stage"]


def test_a_row_that_several_points_agree_with_is_of_none():
    one, other = point_with(), point_with(training={"global_batch": 24})
    found = matched([replace(ROW, global_batch=12), ROW, replace(ROW, layers=1)], [one, other])
    assert {name: [row.global_batch for row in rows] for name, rows in found.rows.items()} == {one.id: [12]}
    assert (found.ambiguous, found.unmatched) == ((ROW,), (replace(ROW, layers=1),))


# What the experiment's file says of the figure


@pytest.mark.parametrize(
    ("given", "wrong", "said"),
    [
        ("x: global_batch", "x: globl_batch", r"paper\.plot\.x: got 'globl_batch'; .*nearest: global_batch"),
        ("series: [schedule]", "series: [schedul]", r"paper\.plot\.series: got 'schedul'.*nearest: schedule"),
        ("y: tflops_per_gpu", "y: tflops", r"paper\.plot\.y: got 'tflops'; nearest: petaflops"),
        ("source: narayanan2021", "source: narayanan", r"paper\.published\.source: .*nearest: narayanan2021"),
        ('table: "Figure 12"', 'table: "Figure 9"', r"paper\.published\.table: got 'Figure 9'; .*has no such table"),
    ],
)
def test_what_names_nothing_is_refused_with_the_nearest_word(tmp_path, given, wrong, said):
    with pytest.raises(BadInput, match=said):
        plot_of(experiment_of(tmp_path, FIGURE_12.replace(given, wrong)))


# The table of differences


def test_every_cell_of_the_table_by_hand(figure_12, tmp_path):
    table = difference_table(compared(figure_12, tmp_path / "store", simulated_figure_12(figure_12)))
    assert [column.heading for column in table.columns][2:] == [
        *("published, TFLOP/s", "simulated, TFLOP/s", "simulated: error", "beyond rounding")
    ]
    by_place = {(row[0], row[1]): row[2:] for row in table.body}
    assert len(by_place) == 10
    assert by_place["1f1b", "B=12"] == ["82", "83.00", "+1.2%", "+0.6%"]  # 1/82, 0.5/82.5
    assert by_place["1f1b", "B=36"] == ["122", "122.4", "+0.3%", "0%"]  # within 121.5 to 122.5
    assert by_place["interleaved v=4", "B=48"] == ["143", "145.0", "+1.4%", "+1.0%"]  # 2/143, 1.5/143.5


def test_the_accuracy_of_figure_and_series_by_hand(figure_12, tmp_path):
    found = compared(figure_12, tmp_path / "store", simulated_figure_12(figure_12))
    printed = (82, 109, 122, 130, 135)
    errors = [100 * abs(rate - one) / one for rate, one in zip(RATES["1f1b"], printed, strict=True)]
    of_series = found.accuracy("simulated", "1f1b")
    assert (of_series.points, of_series.mape) == (5, pytest.approx(sum(errors) / 5))
    assert of_series.largest == pytest.approx(100 / 82)
    whole = found.accuracy("simulated")
    assert whole.points == 10
    assert whole.mape_beyond < whole.mape
    caption = paper_figure(found).caption
    assert f"simulated: MAPE {whole.mape:.2f}% over 10 points" in caption
    assert "96 B s l h² (1 + s/(6h) + V/(16 l h))" in caption
    assert "Peak of a rank, simulated: 312 TFLOP/s (A100 datasheet)." in caption


def test_removed_records_are_missing_and_changed_ones_change_the_numbers(figure_12, tmp_path):
    records = simulated_figure_12(figure_12)
    first = record_at(figure_12, "paper", points_of(figure_12, "paper")[0], 8.8)
    table = difference_table(compared(figure_12, tmp_path / "some", [first, *records[2:]]))
    cells = {(row[0], row[1]): row[3:] for row in table.body}
    assert cells["1f1b", "B=24"] == [MISSING, "–", "–"]
    assert cells["1f1b", "B=12"][0] == "41.72"
    assert [number for number, failed in enumerate(table.failed) if failed] == [1]
    nothing = difference_table(compared(figure_12, tmp_path / "none", []))
    assert {row[3] for row in nothing.body} == {MISSING}
    assert {row[2] for row in nothing.body} == {str(row.printed) for row in plot_of(figure_12).rows}


def test_a_point_that_does_not_fit_has_no_value(figure_12, tmp_path):
    memory = predicted_memory("does not fit")
    records = [record.model_copy(update={"memory": memory}) for record in simulated_figure_12(figure_12)[:1]]
    found = compared(figure_12, tmp_path / "store", records)
    assert difference_table(found).body[0][3] == "does not fit: 90.0 of 80.0 GiB"
    assert found.accuracy("simulated") is None


def test_published_values_of_no_point_are_told(figure_12, tmp_path):
    fewer = FIGURE_12.replace("global_batch: [12, 24, 36, 48, 60]", "global_batch: [12, 24]")
    found = compared(experiment_of(tmp_path, fewer), tmp_path / "store", [])
    said = loose_rows(found)
    assert len(said) == 6
    assert said[0] == "no point here has the configuration of the published non-interleaved at 36: 122 TFLOP/s"


# What shares an axis


def test_scales_and_given_times_have_panels_of_their_own(figure_12, tmp_path):
    records = [
        *simulated_figure_12(figure_12),
        *laptop_records(figure_12, "measured"),
        *laptop_records(figure_12, "emulated", 2.0),
        *laptop_records(figure_12, "simulated", 2.0),
    ]
    panels = panels_of(compared(figure_12, tmp_path / "store", records))
    assert [(panel.scale, panel.given, panel.sources) for panel in panels] == [
        ("paper", False, ["published", "simulated"]),
        ("laptop", False, ["measured"]),
        ("laptop", True, ["simulated", "emulated"]),
    ]


def test_no_drawn_line_mixes_sources_and_each_says_its_own(figure_12, tmp_path):
    records = [*simulated_figure_12(figure_12), *laptop_records(figure_12, "measured")]
    records += laptop_records(figure_12, "emulated", 2.0)
    found = compared(figure_12, tmp_path / "store", records)
    drawn = paper_figure(found)
    styles = {}
    for axes, panel in zip(drawn.figure.axes, panels_of(found), strict=False):
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert len(lines) == len(axes.get_lines()), "every line has a label of its own"
        assert set(lines) == {curve.label for curve in curves_of(panel)}
        for curve in curves_of(panel):
            line = lines[curve.label]
            assert line.get_label().endswith(f", {curve.source}")
            style = line.get_linestyle(), line.get_marker(), line.get_markerfacecolor() == "none"
            assert styles.setdefault(curve.source, style) == style
            assert len(line.get_xdata()) == len(curve.xs)
    assert len(set(styles.values())) == len(styles) == 4, "no two sources look the same"
    assert styles["published"] == ("None", "o", True)
    assert styles["simulated"][:2] == ("-", "")
    paper = drawn.figure.axes[0]
    assert paper.get_ylabel() == "throughput per rank, TFLOP/s"
    assert list(paper.get_lines()[0].get_ydata()) == [82, 109, 122, 130, 135]
    assert drawn.figure.axes[1].get_ylabel() == "throughput per rank, GFLOP/s"
    assert drawn.figure.axes[2].get_ylabel() == "relative to the highest here"


def test_values_of_given_times_are_not_held_against_published_ones(figure_12, tmp_path):
    records = [record.model_copy(update={"breakdown_seconds": None}) for record in simulated_figure_12(figure_12)]
    found = compared(figure_12, tmp_path / "store", records)
    assert found.accuracy("simulated") is None
    cells = {(row[0], row[1]): row[3] for row in difference_table(found).body}
    assert cells["1f1b", "B=12"] == "0.568 of the highest"  # 83/146


# The page


def test_the_figure_stands_first_on_the_page_with_its_table(figure_12, tmp_path):
    stored(tmp_path / "store", figure_12, simulated_figure_12(figure_12))
    records, _ = read_stores([tmp_path / "store"], "figure-12")
    written = write_report("Figure 12", records, [], tmp_path / "out", (), figure_12)
    names = {path.name for path in written.paths}
    assert {"paper.svg", "paper.png", "breakdown-paper-simulated.svg"} <= names
    html = (tmp_path / "out" / "index.html").read_text()
    assert html.index('id="paper"') < html.index("<h2>Results</h2>") < html.index('id="throughput"')
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| 1f1b | B=12 | 82 | 83.00 | +1.2% | +0.6% |" in text
    assert "- the number of chunks is the released script's" in text
    assert not re.search(r"the point's pace gives", text), "a device was simulated, no times were given"


def test_a_report_without_a_published_figure_has_the_breakdown_too(tmp_path):
    experiment = experiment_of(tmp_path, re.sub(r"  published:.*\n  plot:.*\n", "", FIGURE_12))
    point = points_of(experiment, "paper")[0]
    engine = {"actions": [3.0], "reduction_wait": [0.1], "optimizer": [0.2]}
    measured = record_at(experiment, "paper", point, 4.0, "measured", breakdown_seconds=engine)
    stored(tmp_path / "store", experiment, [record_at(experiment, "paper", point, 4.0), measured])
    records, _ = read_stores([tmp_path / "store"], "figure-12")
    written = write_report("Figure 12", records, [], tmp_path / "out", (), experiment)
    names = {path.stem for path in written.paths}
    assert "breakdown-paper-simulated" in names
    assert not {"paper", "breakdown-paper-measured"} & names, "the engine's own cut is no explanation"
    assert "| (8,12,1) 1f1b | 4.000 | 2.40 | 0.400 | 1.20 |" in (tmp_path / "out" / "report.md").read_text()


def test_the_breakdown_is_of_the_records_seconds(figure_12, tmp_path):
    point = points_of(figure_12, "paper")[0]
    rows = stored(tmp_path / "store", figure_12, [record_at(figure_12, "paper", point, 4.0)])
    _, (_, breakdown) = paper_sections(figure_12, rows)
    assert breakdown.table.body == [["1f1b, B=12", "4.000", "2.40", "0.400", "1.20"]]
    bars = breakdown.figure.figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([100 * share for share in BREAKDOWN.values()])
    assert seconds_at(point, 83) == pytest.approx(4.42, abs=0.01)
