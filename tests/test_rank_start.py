"""A rank's first steps: nobody connects to the supervisor before every rank of the host has been forked."""

import threading
from types import SimpleNamespace

import pytest

from suite.launch import rank as rank_module
from suite.launch.job import JobFolder


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job of which this process is rank 2, the first of two on its host; the supervisor's part is left out."""
    for name, value in (("RANK", 2), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    for name in ("_take_signals", "end_with_parent"):
        monkeypatch.setattr(rank_module, name, lambda *_: None)
    monkeypatch.setattr(
        rank_module, "_measure", lambda job, lowered, folder, node: {"ranks": folder.processes(range(4))}
    )
    made = SimpleNamespace(folder=tmp_path / "job")
    assert JobFolder(made.folder).claim({})
    return made


def test_a_rank_waits_for_the_others_of_its_host(job):
    results = []
    thread = threading.Thread(target=lambda: results.append(rank_module.run_rank(job, None, 0, 0)), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "rank 3 is not there yet"
    JobFolder(job.folder).register(3, 33)
    thread.join(10)
    assert results[0]["ranks"][3] == 33


def test_a_rank_that_waits_in_vain_names_who_is_missing(job, monkeypatch):
    monkeypatch.setattr(rank_module, "FORK_SECONDS", 0.05)
    with pytest.raises(TimeoutError, match=r"have not started: 3$"):
        rank_module.run_rank(job, None, 0, 0)
    assert JobFolder(job.folder).errors()[0]["kind"] == "TimeoutError"
