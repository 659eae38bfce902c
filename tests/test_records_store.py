"""The store: whole files, free launch numbers, merged folders, and skipped files by name."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suite.records.frame import frame
from suite.records.schema import Record
from suite.records.store import Store, read_stores


def record_of(point_id="0a1b2c3d", **changes):
    fields = {
        "experiment": "sweep",
        "scale": "laptop",
        "point_id": point_id,
        "source": "measured",
        "point": {"model": {"layers": 4}, "parallel": {"order": ["tensor", "data"]}},
        "status": "ok",
        "iterations": {"seconds": [0.2, 0.1], "loss": [3.0, 2.0], "grad_norm": [1.0, 1.0], "warmup": 1},
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:05:05+00:00",
    }
    return Record.model_validate(fields | changes)


def test_written_where_the_contract_says_and_read_back(tmp_path):
    store = Store(tmp_path)
    path = store.write(record_of(), "abc1234-dirty", 0)
    assert path == tmp_path / "sweep" / "laptop" / "measured" / "0a1b2c3d" / "abc1234-dirty-0.json"
    raw = json.loads(path.read_text())
    assert raw["schema"] == 1
    assert "schema_version" not in raw
    assert not {"file", "revision", "launch"} & set(raw)
    (back,), problems = store.read("sweep")
    assert problems == []
    assert (back.file, back.revision, back.launch) == (str(path), "abc1234-dirty", 0)
    assert back.model_dump(by_alias=True) == record_of().model_dump(by_alias=True)
    assert store.experiments() == ["sweep"]


def test_launch_numbers_go_up_per_revision(tmp_path):
    store = Store(tmp_path)
    names = [store.write(record_of(), revision).name for revision in ("a", "a", "b", "a")]
    assert names == ["a-0.json", "a-1.json", "b-0.json", "a-2.json"]
    assert store.next_launch("sweep", "laptop", "measured", "0a1b2c3d", "a") == 3
    assert store.next_launch("sweep", "laptop", "measured", "ffffffff", "a") == 0


def test_an_existing_file_is_never_overwritten(tmp_path):
    store = Store(tmp_path)
    first = store.write(record_of(), "a", 0)
    before = first.read_bytes()
    second = store.write(record_of(status="failed"), "a", 0)
    assert second.name == "a-1.json"
    assert first.read_bytes() == before


@pytest.mark.parametrize("links", [True, False])
def test_writers_at_the_same_time_lose_nothing(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda number: store.write(record_of(reason=str(number)), "a", 0), range(24)))
    assert len(set(paths)) == 24
    records, problems = store.read("sweep")
    assert problems == []
    assert {record.reason for record in records} == {str(number) for number in range(24)}
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(path.name for path in paths)


def _no_links(source, target):
    raise PermissionError(1, "Operation not permitted")


def test_a_killed_writer_leaves_no_record(tmp_path):
    program = (
        "import os, sys\n"
        "from suite.records.schema import Record\n"
        "from suite.records.store import Store\n"
        "os.fsync = lambda descriptor: os._exit(9)\n"
        "Store(sys.argv[1]).write(Record.model_validate_json(sys.argv[2]), 'a')\n"
    )
    given = record_of().model_dump_json(by_alias=True)
    root = Path(__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path), given], cwd=root, check=False)
    assert ended.returncode == 9
    assert Store(tmp_path).read("sweep") == ([], [])


def test_samples_that_are_not_finite_are_valid_json_and_read_back_as_nan(tmp_path):
    timed = {"seconds": [0.1, 0.1], "loss": [math.nan, math.inf], "grad_norm": [1.0, math.nan], "warmup": 0}
    path = Store(tmp_path).write(record_of(iterations=timed), "a")
    raw = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert raw["iterations"]["loss"] == [None, None]
    (back,), problems = Store(tmp_path).read("sweep")
    assert problems == []
    assert back.iterations is not None
    assert all(map(math.isnan, back.iterations.loss))
    assert back.iterations.grad_norm[0] == 1.0
    assert back.iterations.forward_backward_seconds is None
    assert len(read_stores([tmp_path, tmp_path], "sweep")[0]) == 1


def test_bad_files_are_named_and_skipped(tmp_path):
    store = Store(tmp_path)
    good = store.write(record_of(), "a")
    folder, text = good.parent, good.read_text()
    (folder / "a-1.json").write_text(text[:100])
    (folder / "a-2.json").write_text(text.replace('"schema": 1', '"schema": 2'))
    (folder / "a-3.json").write_text("[]")
    (folder / "a-4.json").write_text(text.replace('"status": "ok"', '"status": "fine"'))
    (folder / "a-5.json").write_text(text.replace("0a1b2c3d", "ffffffff"))
    (folder / "a-6.json").write_bytes(b"\xff\xfe")
    (folder / "a-7.json").touch()
    (folder / "notes.txt").write_text("hello")
    (folder.parent / "a-0.json").write_text(text)
    (folder.parent.parent / "guessed").mkdir()
    (folder / ".hidden").write_text("passed over")
    (folder / "job-17").mkdir()
    (folder / "job-17" / "a-0.json").write_text("a log of a job, not a record")
    records, problems = store.read("sweep")
    assert [record.file for record in records] == [str(good)]
    reasons = {Path(problem.file).relative_to(tmp_path / "sweep" / "laptop"): problem.reason for problem in problems}
    expected = {
        "measured/0a1b2c3d/a-1.json": "torn or not JSON",
        "measured/0a1b2c3d/a-2.json": "schema 2, and this version of the suite reads schema 1",
        "measured/0a1b2c3d/a-3.json": "no field 'schema'",
        "measured/0a1b2c3d/a-4.json": "status",
        "measured/0a1b2c3d/a-5.json": "misplaced: the record says sweep/laptop/measured/ffffffff",
        "measured/0a1b2c3d/a-6.json": "torn or not JSON",
        "measured/0a1b2c3d/a-7.json": "torn or not JSON",
        "measured/0a1b2c3d/notes.txt": "foreign file",
        "measured/a-0.json": "misplaced",
        "guessed": "foreign folder",
    }
    assert {str(path) for path in reasons} == set(expected)
    for path, reason in expected.items():
        assert reason in reasons[Path(path)]


def test_scale_and_source_filter(tmp_path):
    store = Store(tmp_path)
    for scale, source in (("laptop", "measured"), ("laptop", "simulated"), ("paper", "simulated")):
        store.write(record_of(scale=scale, source=source), "a")
    assert len(store.read("sweep")[0]) == 3
    assert len(store.read("sweep", scale="laptop")[0]) == 2
    assert len(store.read("sweep", source="simulated")[0]) == 2
    assert len(store.read("sweep", scale="paper", source="measured")[0]) == 0
    assert store.read("another") == ([], [])


def test_merged_stores_count_a_copy_once_and_a_clash_twice(tmp_path):
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    one.write(record_of(), "a")
    shutil.copytree(one.root, two.root)
    one.write(record_of(reason="here"), "a")
    two.write(record_of(reason="there"), "a")
    two.write(record_of("99999999"), "a")
    records, problems = read_stores([one.root, two.root, one.root], "sweep")
    assert problems == []
    found = [(record.point_id, record.launch, record.reason) for record in records]
    assert found == [
        ("0a1b2c3d", 0, None),
        ("0a1b2c3d", 1, "here"),
        ("0a1b2c3d", 1, "there"),
        ("99999999", 0, None),
    ]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_names_cannot_leave_the_store(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name"):
        Store(tmp_path).write(record_of(name), "a")
    with pytest.raises(ValueError, match="cannot name"):
        Store(tmp_path).write(record_of(), name)
    assert list(tmp_path.iterdir()) == []


def test_frame_has_the_configuration_as_columns(tmp_path):
    Store(tmp_path).write(record_of(), "a")
    table = frame(Store(tmp_path).read("sweep")[0])
    row = table.iloc[0]
    assert (row["point_id"], row["launch"], row["model.layers"]) == ("0a1b2c3d", 0, 4)
    assert row["parallel.order"] == "tensor data"


def test_a_thousand_records_read_fast(tmp_path):
    store = Store(tmp_path)
    path = store.write(record_of(), "a")
    for number in range(1, 1000):
        shutil.copy(path, path.with_name(f"a-{number}.json"))
    begin = time.perf_counter()
    assert len(store.read("sweep")[0]) == 1000
    assert time.perf_counter() - begin < 5
