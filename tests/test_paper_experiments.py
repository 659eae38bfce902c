"""The paper's experiments: every point of both scales can run, and each published row is one point at paper scale."""

from pathlib import Path

import pytest

from suite.experiment.catalogue import load_cluster, load_experiment
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.records.published import PublishedRow, published
from suite.report.paper.matching import matched

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "experiments" / "paper").glob("*.yaml"))
TABLES = ("table-1", "table-2")
FIGURES = ("6", "7", "8", "11", "12", "13", "14", "15", "16", "17", "18")
SECTIONS = ("5.8", "5.9", "5.10")
# Points without a published row: what did not fit, and what the scatter/gather optimisation saves.
UNPUBLISHED = {"table-2": 1, "figure-17": 5, "section-5.9": 1}


def test_every_result_of_the_paper_has_its_file():
    assert {file.stem for file in FILES} == {
        *TABLES,
        *(f"figure-{number}" for number in FIGURES),
        *(f"section-{number}" for number in SECTIONS),
    }


@pytest.fixture(scope="module")
def plans():
    experiments = {file.stem: load_experiment(file) for file in FILES}
    return {
        (name, scale): expand(experiment, scale)
        for name, experiment in experiments.items()
        for scale in experiment.scales
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_every_point_can_run(plans, file, scale):
    expansion = plans[file.stem, scale]
    assert [planned.reasons for planned in expansion.points if planned.reasons] == []
    assert expansion.points
    assert expansion.dropped == 0
    for planned in expansion.valid:
        zero3 = planned.point.parallel.sharding == "zero3"
        machine = "ideal" if file.stem == "figure-6" else "selene-zero3" if zero3 else "selene"
        assert planned.point.cluster == ("local" if scale == "laptop" else machine)
        if scale == "laptop":
            assert planned.point.parallel.ranks <= 16


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_says_what_it_reproduces(file):
    experiment = load_experiment(file)
    (kind,) = {"table", "figure", "section"} & experiment.paper.keys()
    number = str(experiment.paper[kind])
    assert file.stem == f"{kind}-{number}"
    assert experiment.paper["published"] == {"source": "narayanan2021", "table": f"{kind.capitalize()} {number}"}
    assert experiment.paper["laptop"] in ("measured", "emulated")
    assert all(isinstance(gap, str) for gap in experiment.paper.get("gaps", []))
    assert ("plot" in experiment.paper) == (file.stem not in ("section-5.9", "section-5.10"))


def _differs(row: PublishedRow, point: Point) -> list[str]:
    """The cells that say something else than the point does."""
    parallel, training, model = point.parallel, point.training, point.model
    cells = {
        "layers": model.layers,
        "hidden": model.hidden_size,
        "heads": model.heads,
        "seq": model.seq_length,
        "vocab": model.vocab_size,
        "n_gpus": parallel.ranks,
        "tp": parallel.tensor,
        "pp": parallel.pipeline,
        "dp": parallel.data,
        "vpp": point.schedule.chunks,
        "microbatch": training.microbatch,
        "global_batch": training.global_batch,
        "schedule_name": point.schedule.name,
        "recompute": training.recompute,
        "precision": training.precision,
        "zero_stage": {"none": 0, "zero1": 1, "zero3": 3}[parallel.sharding],
        "scatter_gather": parallel.scatter_gather,
        "fused": point.kernels != "reference",
        "reduction": "overlapped" if parallel.overlap_reduction else "after",
    }
    return [name for name, value in cells.items() if getattr(row, name) not in (None, value)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_published_row_is_one_point(plans, file):
    table = load_experiment(file).paper["published"]["table"]
    points = [planned.point for planned in plans[file.stem, "paper"].valid]
    rows = [row for row in published("narayanan2021") if row.table == table]
    assert rows
    found = set()
    for row in rows:
        same = [point.id for point in points if not _differs(row, point)]
        assert len(same) == 1, (row, [_differs(row, point) for point in points])
        found.update(same)
    assert len(points) - len(found) == UNPUBLISHED.get(file.stem, 0)


def test_the_papers_machine_takes_its_largest_job():
    assert load_cluster("selene").max_ranks == 3072


def test_of_the_fusions_one_by_one_the_first_and_the_last_point_are_the_papers():
    experiment = load_experiment(ROOT / "experiments" / "kernels.yaml")
    points = [planned.point for planned in expand(experiment, "paper").valid]
    rows = [row for row in published("narayanan2021") if row.table == "Section 5.8"]
    found = matched(rows, points)
    assert not found.ambiguous
    assert not found.unmatched
    assert {point.kernels for point in points if point.id in found.rows} == {"auto", "reference"}
    assert len(found.rows) == 4
    laptop = expand(experiment, "laptop")
    assert len(laptop.valid) == len(laptop.points) == 10
