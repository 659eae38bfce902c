"""The report: every number against a hand computation from the record's file, and the page in a browser."""

import csv
import json
import math
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_records import LAYOUTS, PEAK, record_of, written

from suite.console import SweepProgress
from suite.experiment.point import Point
from suite.records.store import read_stores
from suite.report import style
from suite.report.explain import explain
from suite.report.figures import series_colours
from suite.report.metrics import ImpossibleEfficiencyError, metrics
from suite.report.page import write_report
from suite.report.summary import summarise
from suite.report.tables import detail_columns, footnotes, result_columns, text_table


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A sweep as it comes: several layouts, repeated, oversubscribed, emulated and failed points."""
    crowded = {"threads_per_rank": 1, "cores": 2, "host": "node-1", "device": "cpu", "cpu": "a processor"}
    return written(
        tmp_path_factory.mktemp("store"),
        *(record_of(*layout) for layout in LAYOUTS),
        record_of((1, 4, 1), "gpipe", launch=1),
        record_of((2, 4, 1), oversubscribed=True, environment=crowded),
        record_of((1, 4, 2), source="emulated"),
        record_of(
            (1, 4, 4),
            status="oom",
            reason="out of memory <on rank 3>",
            iterations=None,
            ranks=None,
            trace=None,
        ),
    )


@pytest.fixture(scope="module")
def report(full, tmp_path_factory):
    return write_report("Synthetic sweep", full, [], tmp_path_factory.mktemp("report"))


def test_numbers_by_hand_from_the_file(tmp_path):
    full = {"training": {"recompute": "full"}}
    (record,) = written(tmp_path, record_of((1, 4, 1), batch=8, **full))
    raw = json.loads(Path(record.file).read_text())
    kept = raw["iterations"]["seconds"][2:]
    seconds = sorted(kept)[2]
    layer = 24 * 8 * 32 * 64**2 + 4 * 8 * 32**2 * 64
    executed = 4 * 4 * layer + 6 * 8 * 32 * 64 * 1024  # 1000 entries are multiplied as 1024
    needed = 3 * 4 * layer + 6 * 8 * 32 * 64 * 1000
    bubbles = []
    for index in range(2, 7):
        busiest = max(rank["busy_seconds"][index] for rank in raw["ranks"])
        bubbles.append((raw["iterations"]["forward_backward_seconds"][index] - busiest) / busiest)
    row = summarise([record]).iloc[0]
    assert row.tokens_per_second == pytest.approx(8 * 32 / seconds, rel=1e-12)
    assert row.hardware_petaflops == pytest.approx(executed / seconds / 1e15, rel=1e-12)
    assert row.model_petaflops == pytest.approx(needed / seconds / 1e15, rel=1e-12)
    assert row.hardware_tflops_per_rank == pytest.approx(executed / seconds / 1e12 / 4, rel=1e-12)
    assert row.hfu_percent == pytest.approx(100 * executed / seconds / (4 * 5e10), rel=1e-12)
    assert row.mfu_percent == pytest.approx(100 * needed / seconds / (4 * 5e10), rel=1e-12)
    assert row.bubble_measured_percent == pytest.approx(100 * statistics.median(bubbles), rel=1e-12)
    assert row.bubble_ideal_percent == pytest.approx(100 * 3 / 8)
    assert row.days_300b_tokens == pytest.approx(300e9 / (8 * 32 / seconds) / 86400, rel=1e-12)
    assert row.memory_bytes == 3_003_000
    quartiles = statistics.quantiles(kept, n=4, method="inclusive")
    assert row.spread_percent == pytest.approx(100 * (quartiles[2] - quartiles[0]) / seconds)


def test_explain_shows_what_each_number_is_made_of(tmp_path):
    (record,) = written(tmp_path, record_of((1, 4, 1)))
    text = explain(record)
    found = metrics(record)
    for value in (
        *(found.model_flops, found.causal_model_flops, found.hardware_flops, record.file, record.point_id),
        *("5e+10 FLOP/s per rank, fp32, dense: measured here", "(4-1)/(1*8)", repr(found.iteration_seconds)),
    ):
        assert str(value) in text
    oom = explain(record_of(status="oom", reason="too large", iterations=None))
    assert "oom: too large" in oom
    assert "tokens/s" not in oom


def test_explain_lets_bubble_and_memory_be_recomputed():
    record = record_of((1, 4, 1))
    text = explain(record)
    pattern = r"iteration (\d+) +\((\S+)-(\S+)\)/(\S+) = (\S+) %, W of rank (\d)"
    found = re.findall(pattern, text)
    assert [int(match[0]) for match in found] == [3, 4, 5, 6, 7]
    for number, whole, busiest, again, shown, rank in found:
        work = [one.busy_seconds[int(number) - 1] for one in record.ranks]
        assert float(whole) == record.iterations.forward_backward_seconds[int(number) - 1]
        assert float(busiest) == float(again) == max(work) == work[int(rank)]
        assert float(shown) == pytest.approx(100 * (float(whole) - max(work)) / max(work), rel=1e-3)
    assert "2.86 MiB on rank 3" in text
    assert re.findall(r"rank (\d) +(\d+) bytes", text) == [
        (str(rank), str(3_000_000 + 1000 * rank)) for rank in range(4)
    ]


def test_oversubscribed_points_claim_no_efficiency(tmp_path):
    table = summarise(written(tmp_path, record_of(), record_of((1, 4, 1), oversubscribed=True)))
    row = table[table.layout == "(1,4,1)"].iloc[0]
    assert row.tokens_per_second > 0
    claims = ["hfu_percent", "mfu_percent", "bubble_measured_percent", "bubble_fraction_percent", "speedup"]
    assert row[claims].isna().all()
    assert "ok, oversubscribed" in text_table(table)


def test_one_oversubscribed_launch_withdraws_the_points_claims(tmp_path):
    launches = [record_of((1, 4, 1)), record_of((1, 4, 1), launch=1, oversubscribed=True)]
    row = summarise(written(tmp_path, *launches)).iloc[0]
    assert row.oversubscribed
    assert math.isnan(row.hfu_percent)
    assert math.isnan(row.bubble_measured_percent)


def test_more_than_the_peak_fails_and_writes_nothing(tmp_path):
    environment = {"peak_flops_per_rank": 1e6, "peak_source": "a typing error"}
    records = written(tmp_path / "store", record_of(), record_of((1, 2, 1), environment=environment))
    with pytest.raises(ImpossibleEfficiencyError, match=r"(?s)abc1234-0\.json: HFU \d+.* %, MFU") as caught:
        write_report("Synthetic", records, [], tmp_path / "out")
    assert record_of((1, 2, 1)).point_id in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_peak_is_no_percentage_with_the_reason(tmp_path):
    environment = {"peak_flops_per_rank": None, "peak_reason": "no peak is known for the device 'X'"}
    table = summarise(written(tmp_path, record_of(environment=environment)))
    assert table[["hfu_percent", "mfu_percent"]].isna().all(axis=None)
    assert "no peak is known for the device 'X'" in text_table(table)


def test_launches_combine_by_the_median_of_medians(tmp_path):
    times = ([1.0, 1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 10.0, 11.0, 12.0], [1.0, 1.0, 5.0, 6.0, 7.0])
    launches = []
    for number, seconds in enumerate(times):
        timed = {"seconds": seconds, "loss": [1.0] * 5, "grad_norm": [1.0] * 5, "warmup": 2}
        launches.append(record_of(launch=number, iterations=timed))
    row = summarise(written(tmp_path, *launches)).iloc[0]
    assert (row.iteration_seconds, row.launches) == (6.0, 3)
    assert row.tokens_per_second == 8 * 32 / 6.0
    assert row.launch_spread_percent == pytest.approx(100 * (11 - 3) / 6)


def test_revisions_are_never_averaged(tmp_path):
    written(tmp_path, record_of(launch=0), revision="old")
    records = written(tmp_path, record_of(launch=1), revision="new")
    row = summarise(records).iloc[0]
    assert (row.revision, row.launches, row.launches_older) == ("new", 1, 1)
    newest = next(record for record in records if record.revision == "new")
    assert row.iteration_seconds == metrics(newest).iteration_seconds


def test_sources_stay_apart(tmp_path):
    table = summarise(written(tmp_path, record_of((1, 4, 1)), record_of((1, 4, 1), source="simulated")))
    assert list(table.source) == ["measured", "simulated"]
    assert "simulated" in text_table(table)


def test_speedup_is_over_the_single_process_of_the_same_work(tmp_path):
    single, double = record_of(), record_of((1, 1, 2))
    table = summarise(written(tmp_path, single, double, record_of((1, 1, 2), batch=16)))
    rates = [metrics(record).tokens_per_second for record in (single, double)]
    same = table[(table.layout == "(1,1,2)") & (table.global_batch == 8)].iloc[0]
    assert same.speedup == pytest.approx(rates[1] / rates[0])
    assert table[table.global_batch == 16].speedup.isna().all()


def test_a_bubble_needs_every_pipeline_rank():
    whole = record_of((1, 4, 1))
    assert metrics(whole).measured_bubble is not None
    assert metrics(whole.model_copy(update={"ranks": whole.ranks[:3]})).measured_bubble is None


def test_a_configuration_of_a_newer_suite_is_named_and_skipped(tmp_path):
    record = record_of()
    newer = record.model_copy(update={"point": {**record.point, "gating": True}, "point_id": "ffffffff"})
    records = written(tmp_path / "store", record, newer)
    report = write_report("Synthetic", records, [], tmp_path / "out")
    assert len(report.table) == 1
    assert "configuration cannot be read: gating" in (tmp_path / "out" / "report.md").read_text()


def test_report_files(full, report):
    out = report.paths[0].parent
    assert all(path.stat().st_size > 0 for path in report.paths)
    assert len(report.table) == 10
    lines = list(csv.DictReader((out / "data.csv").open()))
    assert len(lines) == len(full)
    by_file = {line["file"]: line for line in lines}
    for record in full:
        seconds = metrics(record).iteration_seconds
        assert by_file[record.file]["iteration_seconds"] == ("" if seconds is None else repr(seconds))
        assert by_file[record.file]["model.hidden_size"] == "64"
    page, markdown = (out / "index.html").read_text(), (out / "report.md").read_text()
    for text in (page, markdown):
        assert "measured here: largest of 5 matrix products" in text
        assert "oom" in text
        assert all(point_id in text for point_id in report.table.point_id)
    assert "&lt;on rank 3&gt;" in page
    assert "out of memory <on rank 3>" in markdown
    for image in (out / "figures").glob("*.svg"):
        ElementTree.fromstring(image.read_text())
    drawn = {path.stem for path in (out / "figures").iterdir()}
    assert drawn == {"throughput", "bubble", "loss", *(f"timeline-{number}" for number in (1, 2, 3, 4))}


def test_the_page_needs_nothing_else(report):
    page = report.paths[0].read_text()
    assert "<script" not in page
    loaded = re.findall(r'(?:\bsrc|<link[^>]*href)="([^"]*)"', page)
    assert all(address.startswith("data:") for address in loaded)
    assert re.search(r"@import|url\((?!#)", page) is None
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page)) <= set(ids)


def test_the_same_store_gives_the_same_bytes(full, report, tmp_path):
    again = write_report("Synthetic sweep", full[::-1], [], tmp_path)
    assert len(report.paths) == 17
    for one, two in zip(report.paths, again.paths, strict=True):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes(), one


def test_oversubscribed_everywhere_says_why_nothing_is_claimed(tmp_path):
    environment = {"threads_per_rank": 1, "cores": 2}
    record = record_of((1, 4, 1), oversubscribed=True, environment=environment)
    write_report("Crowded", written(tmp_path / "store", record), [], tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "No bubble is claimed" in page
    assert "oversubscribed: 4 ranks x 1 thread on 2 cores; gaps are not bubble" in page


@pytest.mark.filterwarnings("error::UserWarning")
def test_points_that_differ_in_many_fields_keep_room_for_bars(tmp_path, monkeypatch):
    figures = []
    write = style.Drawn.write

    def kept(drawn, folder):
        figures.append(drawn)
        return write(drawn, folder)

    monkeypatch.setattr(style.Drawn, "write", kept)
    changes = (
        {},
        {"model": {"hidden_size": 128}, "measure": {"warmup": 1, "iterations": 2}},
        {"model": {"hidden_size": 256}, "training": {"recompute": "selective", "learning_rate": 0.00123}},
        {"model": {"hidden_size": 256, "ffn_hidden_size": 512, "seq_length": 16}, "training": {"seed": 5}},
    )
    layouts = (((1, 1, 1), "1f1b", 1), ((1, 2, 1), "interleaved", 2), ((1, 4, 1), "gpipe", 1))
    records = written(
        tmp_path / "store", *(record_of(*layout, **dict(change)) for change in changes for layout in layouts)
    )
    report = write_report("Mixed", records, [], tmp_path / "out")
    labels = list(report.table.label)
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert re.search(r"warm-up|iterations|a=4|l=4|V=", label) is None
    for drawn in figures:
        figure = drawn.figure
        assert figure.axes[0].get_position().width > 0.45, drawn.name
        texts = [figure._suptitle, *figure.legends, *(axes.title for axes in figure.axes)]
        texts += [text for axes in figure.axes for text in axes.get_yticklabels()]
        for dpi in (72, 144):  # of the SVG and the PNG
            figure.set_dpi(dpi)
            with style.styled():
                boxes = [text.get_window_extent(FigureCanvasAgg(figure).get_renderer()) for text in texts]
            assert min(box.x0 for box in boxes) >= 0, drawn.name
            assert max(box.x1 for box in boxes) <= figure.bbox.width, drawn.name


def test_noise_and_unequal_peaks_are_noted(tmp_path):
    noisy = {"seconds": [1.0, 1.0, 1.0, 1.5, 2.0], "loss": [1.0] * 5, "grad_norm": [1.0] * 5, "warmup": 2}
    environment = {"peak_flops_per_rank": 1.2 * PEAK, "peak_source": "measured here"}
    quiet, loud = record_of((1, 1, 2), environment=environment), record_of((1, 2, 1), iterations=noisy)
    notes = footnotes(summarise(written(tmp_path, quiet, loud)))
    assert [note.startswith(f"{loud.point_id}: the machine was not quiet: ") for note in notes] == [True, False]
    assert "from 0.05000 to 0.06000 TFLOP/s per rank" in notes[1]
    assert footnotes(summarise(written(tmp_path / "quiet", record_of(), record_of((1, 1, 2))))) == []


def test_a_loss_that_is_not_finite_and_skipped_steps_are_noted_and_said_in_the_launchs_line(tmp_path, capsys):
    lost = record_of((1, 1, 2))
    lost.iterations.loss[5:] = [math.nan, math.inf]
    lost = lost.model_copy(update={"ranks": [r.model_copy(update={"skipped_steps": 3}) for r in lost.ranks]})
    said = "the loss is not finite in 2 of 7 iterations; 3 optimizer steps were skipped, gradients not being finite"
    records = written(tmp_path, lost, record_of())
    assert footnotes(summarise(records)) == [f"{lost.point_id}: {said}"]
    for record in records:
        point = Point.model_validate(record.point)
        SweepProgress(1).end(SimpleNamespace(point=point), record)
        assert capsys.readouterr().out.rstrip().endswith(said) == (record.point_id == lost.point_id)


def test_nothing_to_report_is_a_page_that_says_so(tmp_path):
    report = write_report("Empty", [], read_stores([tmp_path / "none"], "synthetic")[1], tmp_path)
    assert report.table.empty
    assert "no record" in (tmp_path / "index.html").read_text()
    assert text_table(report.table) == "no records"


@pytest.fixture
def browser(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in (
        *flags.split(),
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(report, browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(report.paths[0].as_uri())
    assert browser.execute_script("return window.innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    figures = browser.find_elements("css selector", "figure svg")
    assert len(figures) == 7
    for figure in figures:
        box = figure.rect
        assert box["width"] > 300
        assert box["height"] > 50
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    labels = browser.execute_script(
        "return [...document.querySelectorAll('[role=img]')].map(item => item.getAttribute('aria-label'))"
    )
    assert len(labels) == 7
    assert all(labels)
    assert len(browser.find_elements("css selector", ".scroll")) == 2
    assert browser.get_log("browser") == []


def test_the_point_is_the_first_column_of_both_tables(report):
    for columns in (result_columns(report.table), detail_columns(report.table)):
        assert [column.heading for column in columns[:3]] == ["point", "layout", "schedule"]


def test_a_schedule_keeps_its_colour_whatever_else_was_run(tmp_path):
    order = ["gpipe", "1f1b", "interleaved v=2"]
    few = summarise(written(tmp_path / "few", record_of((1, 2, 1), "interleaved", 2), record_of(schedule="gpipe")))
    more = [record_of(*layout) for layout in LAYOUTS]
    many = summarise(written(tmp_path / "many", *more, record_of((1, 2, 1), "interleaved", 4)))
    colours = series_colours(few, order)
    assert [colours[f"{label}, measured"] for label in order] == list(style.PALETTE[:3])
    assert series_colours(many, order).items() > colours.items()
    assert series_colours(many, order)["interleaved v=4, measured"] == style.PALETTE[3]
    both = summarise(written(tmp_path / "both", record_of(), record_of(source="emulated")))
    assert len(set(series_colours(both, order).values())) == 6, "two sources never share a series"
