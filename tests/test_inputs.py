"""A point is present only where it was measured on the files that it names."""

import pytest
from command import call

from suite.experiment.catalogue import load_experiment
from suite.experiment.data_digest import data_digest
from suite.experiment.expansion import expand
from suite.records.schema import Record
from suite.records.store import Store

EXPERIMENT = """\
name: one
model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 256, seq_length: 8}
training: {global_batch: 4}
data: {source: text, path: first.txt}
"""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A folder in which one point was measured on `first.txt`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(EXPERIMENT)
    (tmp_path / "first.txt").write_text("the first of two texts")
    (tmp_path / "second.txt").write_text("the second of two texts")
    (planned,) = expand(load_experiment("one.yaml"), "laptop", []).valid
    record = Record(
        experiment="one",
        scale="laptop",
        point_id=planned.point_id,
        source="measured",
        point=planned.configuration,
        status="ok",
        environment={"data": data_digest(planned.point.data)},
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
    )
    Store("results/runs").write(record, "abc")
    return tmp_path


def _present(*overrides: str) -> tuple[bool, str]:
    """Whether the one point is present, and what is said of it; `suite status` has to agree."""
    answer = call("run", "one.yaml", *overrides, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    (state,) = call("status", "one.yaml", *overrides, "--json").json["points"]
    assert state["state"] == ("ok" if answer.json["present"] else "missing")
    assert len(answer.json["present"]) + len(answer.json["missing"]) == 1
    return bool(answer.json["present"]), answer.err


def test_the_same_text_is_present_under_another_path_too(measured):
    assert _present() == (True, "")
    (measured / "first.txt").rename(measured / "moved.txt")
    assert _present("data.path=moved.txt") == (True, "")


def test_a_point_of_another_text_is_not_present_and_one_line_says_why(measured):
    present, said = _present("data.path=second.txt")
    assert not present
    assert "its record was measured on other data (digest " in said
    assert said.count("\n") == 1
    (measured / "first.txt").write_text("a text that has changed")
    assert not _present()[0]


def test_a_point_with_other_held_out_tokens_is_not_present(measured):
    present, said = _present("data.validation=second.txt")
    assert not present
    assert "measured with data.validation=null, and wanted is 'second.txt'" in said
