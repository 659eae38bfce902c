"""Simulated against measured times in a report: which points are compared, and what is said of them."""

import pytest
from paper_records import experiment_of, record_at

from suite.experiment.expansion import expand
from suite.records.store import Store, read_stores
from suite.report.accuracy import accuracy, deviation, pairs
from suite.report.page import write_report
from suite.report.summary import launches_of, rows_of

EXPERIMENT = """
name: both
model: {layers: 4, hidden_size: 64, heads: 4, vocab_size: 256, seq_length: 32}
training: {global_batch: 4}
scales: {laptop: {}}
sweep: {grid: {pipeline: [1, 2, 4]}}
"""
PROCESSOR = {"device": "cpu", "cpu": "A Processor"}  # as a measured record has it


def records(folder, measured, simulated, device="A Processor"):
    """Records of the experiment's points under clusters of different names."""
    experiment = experiment_of(folder, EXPERIMENT, "both")
    points = [planned.point for planned in expand(experiment, "laptop").valid]
    store = Store(folder / "runs")
    for point, seconds in zip(points, measured, strict=True):
        samples = {"seconds": [9.0, 0.9 * seconds, seconds, 1.2 * seconds], "warmup": 1}
        record = record_at(experiment, "laptop", point, seconds, "measured", iterations=samples, environment=PROCESSOR)
        store.write(record, "abc")
    for point, seconds in zip(points, simulated, strict=True):
        there = point.model_copy(update={"cluster": "here"})
        store.write(record_at(experiment, "laptop", there, seconds, environment={"device": device}), "abc")
    found, _ = read_stores([folder / "runs"], "both", "laptop")
    return found


def rows(found):
    launches, problems = launches_of(found)
    assert not problems
    return rows_of(launches)


def test_points_are_paired_whatever_their_cluster_is_called(tmp_path):
    of_points = rows(records(tmp_path, [1.0, 2.0, 4.0], [1.1, 1.6, 4.0]))
    found = pairs(of_points)
    assert {pair.label: pytest.approx(pair.ratio) for pair in found} == {
        "(1,1,1) 1f1b": 1.1,
        "(1,2,1) 1f1b": 0.8,
        "(1,4,1) 1f1b": 1.0,
    }
    assert deviation(found) == pytest.approx(0.1)
    assert found[0].quartiles == pytest.approx((0.95, 1.1))


def test_what_was_simulated_for_another_device_is_not_compared(tmp_path):
    of_points = rows(records(tmp_path, [1.0, 2.0, 4.0], [1.1, 1.6, 4.0], device="A GPU"))
    assert pairs(of_points) == []
    assert accuracy(of_points) == []


def test_the_report_says_how_near_the_simulation_came(tmp_path):
    written = write_report("both", records(tmp_path, [1.0, 2.0, 4.0], [1.1, 1.6, 4.0]), [], tmp_path / "out")
    assert tmp_path / "out" / "figures" / "accuracy.svg" in written.paths
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Of 3 points" in text
    assert "2 lie within 15%; the median deviation is 10.0%, the largest -20%" in text
