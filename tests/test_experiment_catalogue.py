"""Finding experiments, clusters and shipped data."""

from pathlib import Path

import pytest

from suite import resources
from suite.experiment.catalogue import (
    find_experiment,
    list_clusters,
    list_experiments,
    load_cluster,
    load_experiment,
)
from suite.experiment.cluster import read_cluster
from suite.experiment.errors import BadInput, Place

TEXT = "model: gpt-nano\ntraining: {global_batch: 8}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with experiments of its own, and shipped ones elsewhere."""
    shipped = tmp_path / "shipped"
    for name in ("here/experiments/paper/table-9", "here/experiments/mine", "shipped/quick", "shipped/mine"):
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEXT)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("suite.experiment.catalogue.resource_dir", lambda kind: shipped)
    return tmp_path / "here"


def test_by_path(here):
    assert load_experiment("experiments/mine.yaml").name == "mine"
    assert load_experiment(here / "experiments" / "paper" / "table-9.yaml").name == "table-9"


def test_by_name_anywhere_under_experiments_and_the_working_folder_wins(here):
    assert find_experiment("table-9") == Path("experiments/paper/table-9.yaml")
    assert find_experiment("paper/table-9") == Path("experiments/paper/table-9.yaml")
    assert find_experiment("mine") == Path("experiments/mine.yaml")
    assert find_experiment("quick").name == "quick.yaml"
    assert set(list_experiments()) == {"mine", "table-9", "quick"}
    assert list_experiments()["mine"] == Path("experiments/mine.yaml")


def test_one_name_twice_in_one_place_is_refused(here):
    (here / "experiments" / "old").mkdir()
    (here / "experiments" / "old" / "mine.yaml").write_text(TEXT)
    with pytest.raises(BadInput, match=r"several experiments have this name; give the path: .* or "):
        find_experiment("mine")
    assert find_experiment("old/mine") == Path("experiments/old/mine.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quik", "quik: there is no experiment of this name; nearest: quick"),
        ("experiments/mime.yaml", "experiments/mime.yaml: there is no such file; nearest: mine"),
        ("zzz", "zzz: there is no experiment of this name; known: mine, table-9, quick"),
    ],
)
def test_a_name_that_is_not_there(here, name, message):
    with pytest.raises(BadInput) as caught:
        find_experiment(name)
    assert str(caught.value) == message


def test_a_folder_is_no_file(here):
    with pytest.raises(BadInput, match="there is no experiment of this name"):
        load_experiment("experiments")


def test_the_shipped_cluster_is_this_machine():
    local = load_cluster("local")
    assert (local.name, local.max_ranks, local.device, local.threads_per_rank) == ("local", 16, "auto", 1)
    assert "local" in list_clusters()


def test_a_cluster_that_is_not_there():
    with pytest.raises(BadInput) as caught:
        load_cluster("locl", Place("x.yaml", 3, 4))
    assert str(caught.value) == "x.yaml:3:4: cluster: there is no cluster 'locl'; nearest: local"


def test_a_bad_profile_says_everything_at_once(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("name: smal\nmaxranks: 4\ndevice: gpu\nthreads_per_rank: 0\n")
    with pytest.raises(BadInput) as caught:
        read_cluster(path)
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems] == [
        "small.yaml:2:1: maxranks: unknown key; nearest: max_ranks",
        "small.yaml:3:9: device: got 'gpu'; it must be one of auto, cpu, cuda; nearest: cpu",
        "small.yaml:4:19: threads_per_rank: got 0; it must be a whole number of at least 1; nearest: 1",
        "small.yaml:1:1: max_ranks: is missing; it must be a whole number of at least 1",
    ]
    path.write_text("name: smal\nmax_ranks: 4\n")
    with pytest.raises(BadInput, match="it must be the file's own name, small"):
        read_cluster(path)


def test_shipped_data_are_found_in_a_wheel_and_in_a_checkout(tmp_path, monkeypatch):
    module = tmp_path / "suite" / "resources.py"
    module.parent.mkdir()
    monkeypatch.setattr(resources, "__file__", str(module))
    assert resources.resource_dir("clusters") == tmp_path / "slurm" / "clusters"
    assert resources.resource_dir("published") == tmp_path / "results" / "published"
    shipped = tmp_path / "suite" / "shipped" / "clusters"
    shipped.mkdir(parents=True)
    assert resources.resource_dir("clusters") == shipped
    assert resources.resource_dir("templates") == tmp_path / "reports" / "templates"
