"""How benchmarks are compared: on one kind of machine only, and never with nothing.

`make bench` keeps them in pytest-benchmark's storage, `make bench-compare` compares with the last that were kept.
"""

import pytest
import torch

from suite.regression.calibration import machine

torch.set_num_threads(1)


def pytest_benchmark_generate_machine_info(config):
    """What times depend on; pytest-benchmark's own has clock rates, which change all the time."""
    return {"machine": machine(), "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}


def pytest_benchmark_compare_machine_info(config, benchmarksession, machine_info, compared_benchmark):
    """Another machine's times are no baseline; pytest-benchmark would only warn."""
    known = compared_benchmark["machine_info"]
    if known != machine_info:
        raise pytest.UsageError(
            f"not comparable: the benchmarks kept are of {known}, and this machine is {machine_info}"
        )


def pytest_sessionfinish(session):
    """Name the benchmarks that were compared with nothing; where that is all of them, nothing was compared."""
    benchmarks = getattr(session.config, "_benchmarksession", None)
    if benchmarks is None or not benchmarks.compared_mapping:
        return
    known = {name for kept in benchmarks.compared_mapping.values() for name in kept}
    names = {one.fullname for one in benchmarks.benchmarks}
    if new := sorted(names - known):
        session.config.get_terminal_writer().line(f"\nnot compared, for want of a baseline: {', '.join(new)}")
    if not names & known:
        raise pytest.UsageError("nothing was compared: the benchmarks kept are others; make bench first")
