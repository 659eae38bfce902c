"""Taking launches: of any number of sweeps that come at once, one gets each, without locks."""

import threading
from pathlib import Path

import pytest
from layouts import point

from suite.experiment.cluster import Cluster
from suite.launch import claim
from suite.launch.claim import Claims
from suite.launch.job import Job, JobFolder

POINT = point((1, 2, 1))
CLUSTER = Cluster(name="local", max_ranks=4)


def claims(store: Path) -> Claims:
    return Claims("one", "laptop", "measured", store, lambda folder: None if folder.finished else "somebody")


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(claim, "_WAIT_SECONDS", (0.0, 0.02))


def test_of_many_at_once_at_most_one_gets_the_point(tmp_path):
    for round_ in range(8):
        store = tmp_path / str(round_)
        begin = threading.Barrier(6)
        taken: list[Job | str] = []

        def one(store: Path = store, begin: threading.Barrier = begin, taken: list[Job | str] = taken) -> None:
            begin.wait()
            taken.append(claims(store).take(POINT, CLUSTER, set()))

        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(job, Job) for job in taken) <= 1
        assert len(JobFolder.all_of(claims(store).folder(POINT))) == sum(isinstance(job, Job) for job in taken)


def test_own_launches_do_not_stand_in_the_way_and_foreign_ones_do(tmp_path):
    first = claims(tmp_path).take(POINT, CLUSTER, set())
    second = claims(tmp_path).take(POINT, CLUSTER, set(), frozenset({first.folder}))
    assert (first.launch, second.launch) == (0, 1)
    third = claims(tmp_path).take(POINT, CLUSTER, set())
    assert third == f"another sweep is measuring it (somebody, {first.folder})"


def test_what_was_measured_meanwhile_is_not_measured_again(tmp_path):
    job = claims(tmp_path).take(POINT, CLUSTER, set())
    job.write(job.record("ok", None, "2026-01-01T00:00:00+00:00"))
    assert claims(tmp_path).take(POINT, CLUSTER, set()) == "another sweep has measured it since this one began"
    assert claims(tmp_path).take(POINT, CLUSTER, claims(tmp_path).ok_files(POINT)).launch == 1
