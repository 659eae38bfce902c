"""`suite report paper` and `suite report --claims` at the front door: the page of the whole paper from its records."""

import re
from pathlib import Path

import pytest
from command import call
from paper_records import FIGURE_12, experiment_of, points_of, record_at, seconds_at, simulated_figure_12

from suite.records.store import Store
from suite.report.paper.page import accuracy_table, in_order, write_paper_page


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with one experiment of the paper and its simulated records."""
    (tmp_path / "experiments" / "paper").mkdir(parents=True)
    experiment = experiment_of(tmp_path / "experiments" / "paper")
    for record in simulated_figure_12(experiment):
        Store(tmp_path / "results" / "runs").write(record, "abc1234")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_accuracy_figures_breakdown_and_claims(here):
    answer = call("report", "paper")
    assert answer.code == 0, answer.err
    assert re.search(r"Figure 12\s+simulated\s+10\s+0\.6\d%", answer.out)
    folder = here / "reports" / "paper"
    names = {path.name for path in (folder / "figures").iterdir()}
    assert names == {
        f"figure-12-{what}.{kind}" for what in ("paper", "breakdown-paper-simulated") for kind in ("svg", "png")
    }
    html, text = (folder / "index.html").read_text(), (folder / "report.md").read_text()
    assert not re.search(r"<(script|link rel=\"stylesheet\"|img)", html), "the page loads nothing"
    for part in ("Accuracy", "Figure 12: Interleaved and default schedule", "Claims"):
        assert f">{part}</h2>" in html
        assert f"## {part}" in text
    assert "| 1f1b | B=12 | 82 | 83.00 | +1.2% | +0.6% |" in text
    assert "| F12-01 | 5.3.2; Figure 12 |" in text
    assert "no simulated record; suite run figure-11" not in text, "figure 11 is no experiment here"
    assert "there is no experiment figure-11" in text


def test_the_same_records_give_the_same_bytes_and_changed_ones_others(here):
    call("report", "paper", "--out", "one")
    call("report", "paper", "--out", "two")
    for name in ("index.html", "report.md", "figures/figure-12-paper.svg", "figures/figure-12-paper.png"):
        assert (here / "one" / "paper" / name).read_bytes() == (here / "two" / "paper" / name).read_bytes()
    for file in (here / "results").rglob("*.json"):
        file.unlink()
    experiment = experiment_of(here / "experiments" / "paper")
    first = points_of(experiment, "paper")[0]
    changed = record_at(experiment, "paper", first, seconds_at(first, 91.5))
    Store(here / "results" / "runs").write(changed, "abc1234")
    call("report", "paper", "--out", "two")
    text = (here / "two" / "paper" / "report.md").read_text()
    assert "| 1f1b | B=12 | 82 | 91.50 |" in text
    assert "| 1f1b | B=24 | 109 | missing | – | – |" in text
    assert "83.00" not in text


def test_without_a_record_the_page_has_published_numbers_only_and_says_what_to_run(here):
    answer = call("report", "paper", "--results", "nowhere")
    assert answer.code == 3
    assert "paper: nothing was run; suite run paper --on simulate would" in answer.err
    text = (here / "reports" / "paper" / "report.md").read_text()
    assert "- **Records**: none: only published numbers are shown" in text
    assert "No record has the configuration of a published value." in text


def test_the_claims_alone(here):
    answer = call("report", "--claims")
    assert answer.code == 0
    assert "F12-01 (5.3.2; Figure 12) reproduced: " in answer.out
    assert "    simulated holds: 5 of 5" in answer.out
    assert answer.out == call("report", "paper", "--claims").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--claims", "schedule=1f1b"], "suite report --claims, or suite report paper, would work"),
        (["report", "quickstart", "--claims"], "--claims: it is of the whole paper"),
        (["report", "paper", "schedule=1f1b"], "figure-12 takes overrides and options"),
        (["report", "paper", "--explain", "1234"], "paper: a folder's page is of all its points"),
        (["run", "paper", "--on", "simulate", "--json"], "--json: it takes one experiment, and paper is a folder"),
    ],
)
def test_what_goes_with_no_folder_is_refused(here, arguments, said):
    answer = call(*arguments)
    assert answer.code == 2
    assert said in answer.err
    assert not (here / "reports").exists()


def test_a_folder_of_experiments_runs_one_after_another(here):
    folder = here / "experiments" / "paper"
    (folder / "figure-12.yaml").unlink()
    for name in ("one", "two"):
        text = FIGURE_12.replace("name: figure-12", f"name: {name}").replace("[1f1b, {", "[{", 1)
        (folder / f"{name}.yaml").write_text(text)
    answer = call("run", "paper", "--on", "simulate", "--scale", "laptop")
    assert answer.code == 0, answer.err
    assert "one (laptop): 4 launches to run" in answer.out
    assert "two (laptop): 4 launches to run" in answer.out
    assert len(list((here / "results" / "runs").glob("*/laptop/simulated/*/*.json"))) == 8


def test_parts_come_in_the_papers_order(tmp_path):
    papers = {"s": "section: '5.8'", "f": "figure: 12", "e": "figure: 6", "t": "table: 2", "other": "note: 1"}
    experiments = {
        name: experiment_of(tmp_path, FIGURE_12.replace("figure: 12", paper, 1), name) for name, paper in papers.items()
    }
    assert list(in_order(experiments)) == ["t", "e", "f", "s", "other"]


def test_the_mean_of_the_sweeps_counts_every_figure_the_same(tmp_path):
    one = experiment_of(tmp_path)
    for record in simulated_figure_12(one):
        Store(tmp_path / "runs").write(record, "abc1234")
    other = FIGURE_12.replace("name: figure-12", "name: figure-13").replace("figure: 12", "figure: 13", 1)
    second = experiment_of(tmp_path, other, "figure-13")
    first = points_of(second, "paper")[0]
    Store(tmp_path / "runs").write(record_at(second, "paper", first, 4.0), "abc1234")
    written = write_paper_page({"figure-12": one, "figure-13": second}, [tmp_path / "runs"], tmp_path / "out")
    rows = {row[0]: row for row in written.accuracy.body}
    mapes = [float(rows[name][3].rstrip("%")) for name in ("Figure 12", "Figure 13")]
    mean = rows["mean of 2 of figures 11 to 18"]
    assert mean[2] == "11"
    assert float(mean[3].rstrip("%")) == pytest.approx(sum(mapes) / 2, abs=0.01)
    assert mean[4] == rows["Figure 13"][4]
    assert accuracy_table([]).body == []


def test_the_committed_readme_links_pictures_that_are_there():
    root = Path(__file__).resolve().parents[1]
    for link in re.findall(r"\((reports/paper/[^)]+)\)", (root / "README.md").read_text()):
        assert (root / link).is_file(), link
