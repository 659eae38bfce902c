"""What the comparison of devices and links says of those that are slower than their like."""

import pytest

from suite.launch.preflight import _Link, _refuse_mixture, _slow_devices, _slow_links

HOSTS = ["n1", "n1", "n2", "n2"]


def test_a_slow_device_is_named_with_its_host():
    assert list(_slow_devices([1.0, 1.2, 1.0, 1.5], HOSTS)) == [
        "rank 3 on n2: its matrix product takes 1.36 times the median"
    ]
    assert list(_slow_devices([None] * 4, HOSTS)) == []


def test_a_slow_link_is_named_among_those_that_leave_a_node_as_it_does():
    inside = [_Link("pipeline", 0, 1, 1e-4), _Link("pipeline", 2, 3, 9e-4)]
    across = [_Link("pipeline", 1, 2, 8e-3), _Link("data", 0, 2, 1e-2)]
    (said,) = _slow_links([*inside, *across], HOSTS)
    assert said == "pipeline link from rank 2 on n2 to rank 3 on n2: a send takes 9.00 times the median"


def test_devices_of_two_kinds_are_refused():
    with pytest.raises(RuntimeError, match="rank 2 on n2 has a V100, and most ranks have a A100"):
        _refuse_mixture([("n1", "A100"), ("n1", "A100"), ("n2", "V100")])
