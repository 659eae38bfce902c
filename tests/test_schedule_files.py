"""Schedules from files in experiments: a point is its program, whatever the file is called."""

import pytest
from layouts import gradients, point
from schedules import built
from test_parity import assert_parity, single

from suite.experiment.catalogue import load_experiment
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.pipeline.exchange import as_program_json
from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.torch_csv import as_torch_csv

EXPERIMENT = """\
name: files
model: {layers: 4, hidden_size: 16, heads: 2, vocab_size: 64, seq_length: 8}
parallel: {pipeline: 2}
training: {global_batch: 4}
sweep:
  grid:
    schedule.file: [one.csv, two.csv, same.csv, broken.csv, missing.csv, wide.csv]
schedule: file
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files.yaml").write_text(EXPERIMENT)
    (tmp_path / "one.csv").write_text(as_torch_csv(one_f_one_b(2, 4)))
    (tmp_path / "two.csv").write_text(as_torch_csv(gpipe(2, 4)))
    (tmp_path / "same.csv").write_text(as_torch_csv(one_f_one_b(2, 4)))
    (tmp_path / "broken.csv").write_text("0F0,0B0\n1F0junk,1B0\n")
    (tmp_path / "wide.csv").write_text(as_torch_csv(gpipe(4, 4)))
    return lambda: expand(load_experiment("files.yaml"), "laptop")


def test_every_program_is_a_point_and_what_cannot_be_read_is_an_invalid_one(planned):
    expansion = planned()
    assert expansion.dropped == 1  # same.csv is one.csv under another name
    found = {one.point.schedule.file: one.reasons for one in expansion.points}
    assert set(found) == {"one.csv", "two.csv", "broken.csv", "missing.csv", "wide.csv"}
    assert found["one.csv"] == found["two.csv"] == []
    assert "1F0junk" in found["broken.csv"][0]
    assert found["missing.csv"] == ["schedule.file=missing.csv: there is no such file"]
    assert "parallel.pipeline=2: the schedule in wide.csv has 4; parallel.pipeline=4 would work" in found["wide.csv"]


def test_another_content_is_another_point_and_another_path_is_not(planned, tmp_path):
    before = {one.point.schedule.file: one.point for one in planned().points}
    (tmp_path / "one.csv").write_text(as_torch_csv(gpipe(2, 4)))
    after = {one.point.schedule.file: one.point for one in planned().points}
    assert after["one.csv"].id == before["two.csv"].id != before["one.csv"].id
    stored = Point.model_validate(before["one.csv"].model_dump(mode="json"))
    assert stored.id == before["one.csv"].id, "a record's id does not depend on the file that lies there now"


def test_a_digest_that_is_given_must_be_the_files(planned):
    (one,) = expand(load_experiment("files.yaml"), "laptop", ["schedule.file=one.csv", "schedule.digest=abc"]).points
    assert "schedule.digest=abc: the file one.csv has" in one.reasons[0]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["zb-v", "chimera"])
def test_a_program_from_a_file_has_the_single_process_gradients(name, tmp_path):
    schedule = built(name, 2, 8)
    (tmp_path / "program.json").write_text(as_program_json(schedule))
    fields = {"name": "file", "file": str(tmp_path / "program.json"), "chunks": schedule.chunks}
    found = gradients(point((1, 2, 1), fields, 8, model={"layers": 9}))
    assert_parity(found, single(9, 8, 1, True))
    for rank in found["ranks"]:
        assert tuple(rank["executed"]) == schedule.programs[rank["coords"]["pipeline"]]
