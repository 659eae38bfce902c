"""The demo in small: three layouts of the quickstart, run and reported, with every headline recomputed by hand."""

import csv
import json
from statistics import median

import pytest
from command import run

LAYOUTS = ((1, 1, 1), (2, 1, 1), (1, 2, 1))  # tensor, pipeline, data
OVERRIDES = (
    "parallel=" + ",".join(f"{{tensor: {t}, pipeline: {p}, data: {d}}}" for t, p, d in LAYOUTS),
    "schedule=1f1b",
    "model.layers=4",
    "global_batch=8",
    "measure.warmup=2",
    "measure.iterations=8",
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder in which the demo ran, its records by layout, and the rows of `data.csv` by point."""
    folder = tmp_path_factory.mktemp("demo")
    sweep = run("run", "quickstart", *OVERRIDES, cwd=folder)
    assert sweep.code == 0, sweep
    report = run("report", "quickstart", cwd=folder)
    assert report.code == 0, report
    assert "report: reports/quickstart/index.html" in report.out
    records = [json.loads(file.read_text()) for file in (folder / "results" / "runs").glob("*/*/*/*/*.json")]
    by_layout = {
        tuple(record["point"]["parallel"][name] for name in ("tensor", "pipeline", "data")): record
        for record in records
    }
    with (folder / "reports" / "quickstart" / "data.csv").open() as file:
        rows = {row["point_id"]: row for row in csv.DictReader(file)}
    return folder, by_layout, rows


def test_every_layout_ran_and_is_in_the_report(demo):
    folder, records, rows = demo
    assert set(records) == set(LAYOUTS)
    assert {record["status"] for record in records.values()} == {"ok"}
    assert rows.keys() == {record["point_id"] for record in records.values()}
    page = (folder / "reports" / "quickstart" / "index.html").read_text()
    assert all("({},{},{})".format(*layout) in page for layout in records)
    assert {file.suffix for file in (folder / "reports" / "quickstart" / "figures").iterdir()} == {".svg", ".png"}


def test_all_layouts_train_the_same_model(demo):
    losses = {layout: record["iterations"]["loss"] for layout, record in demo[1].items()}
    single = losses[1, 1, 1]
    assert len(single) == 10
    for layout, found in losses.items():
        assert found[0] == pytest.approx(single[0], abs=1e-5), layout
        assert found[9] == pytest.approx(single[9], abs=1e-4), layout


def test_the_loss_falls(demo):
    for record in demo[1].values():
        loss = record["iterations"]["loss"]
        assert 5 < loss[0] < 6.5, "bytes of text, before training: near ln 256"
        assert loss[9] < loss[0] - 0.5


def test_the_report_says_what_the_records_say(demo):
    """Throughput, percentage of peak and bubble, by hand from the JSON file alone."""
    for layout, record in demo[1].items():
        row = demo[2][record["point_id"]]
        model, timed = record["point"]["model"], record["iterations"]
        batch = record["point"]["training"]["global_batch"]
        s, layers, h = model["seq_length"], model["layers"], model["hidden_size"]
        assert model["ffn_hidden_size"] == 4 * h
        vocabulary = 256  # two times 128: nothing to pad for one or two tensor ranks
        assert model["vocab_size"] == vocabulary
        flops = 72 * batch * s * layers * h * h * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
        seconds = median(timed["seconds"][timed["warmup"] :])
        assert float(row["iteration_seconds"]) == pytest.approx(seconds)
        assert float(row["tokens_per_second"]) == pytest.approx(batch * s / seconds)
        assert float(row["hardware_petaflops"]) == pytest.approx(flops / seconds / 1e15)
        assert float(row["model_petaflops"]) == pytest.approx(flops / seconds / 1e15)
        ranks = layout[0] * layout[1] * layout[2]
        if record["oversubscribed"]:
            assert row["hfu_percent"] == row["mfu_percent"] == row["bubble_measured_percent"] == ""
        else:
            peak = record["environment"]["peak_flops_per_rank"]
            assert float(row["hfu_percent"]) == pytest.approx(100 * flops / seconds / (ranks * peak))
            bubbles = []
            for index in range(timed["warmup"], len(timed["seconds"])):
                busiest = max(rank["busy_seconds"][index] for rank in record["ranks"])
                bubbles.append((timed["forward_backward_seconds"][index] - busiest) / busiest)
            assert float(row["bubble_measured_percent"]) == pytest.approx(100 * median(bubbles))
        stages, microbatches = layout[1], batch // (layout[2] * record["point"]["training"]["microbatch"])
        assert float(row["bubble_ideal_percent"]) == pytest.approx(100 * (stages - 1) / microbatches)
        assert float(row["first_loss"]) == timed["loss"][0]
        assert float(row["final_loss"]) == timed["loss"][-1]
