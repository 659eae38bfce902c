"""The report of a thousand records."""

import pytest
from report_records import record_of

from suite.records.store import Store
from suite.report.page import write_report

POINTS, LAUNCHES = 50, 20


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    store = Store(root)
    for number in range(POINTS):
        for launch in range(LAUNCHES):
            store.write(record_of((1, 2, 1), training={"seed": number}, launch=launch, trace=None), "abc1234", launch)
    return store


def test_reading(benchmark, thousand):
    records, problems = benchmark.pedantic(thousand.read, ("synthetic",), rounds=3)
    assert (len(records), problems) == (POINTS * LAUNCHES, [])


def test_report(benchmark, thousand, tmp_path):
    records, problems = thousand.read("synthetic")
    written = benchmark.pedantic(
        write_report, ("A thousand launches", records, problems, tmp_path), rounds=2, iterations=1
    )
    assert len(written.table) == POINTS
