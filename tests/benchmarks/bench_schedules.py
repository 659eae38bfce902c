"""Schedules: generating, proving, and predicting them; for some seconds each, so that some rounds are undisturbed."""

import pytest

from suite.experiment.point import Schedule
from suite.pipeline.collection import no_collection
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.pipeline.timeline import Costs, Link, Network, timeline

STAGES, MICROBATCHES = 8, 64
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe", "hanayo", "list")


def made(name):
    options = {"name": name, **({"cap": STAGES} if name == "list" else {})}
    return generate(Schedule.model_validate(options), STAGES, MICROBATCHES)


@pytest.mark.parametrize("name", NAMES)
def test_generation(benchmark, name):
    with no_collection():
        benchmark(made, name)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_proof(benchmark, name):
    with no_collection():
        benchmark(prove, made(name))


@pytest.mark.parametrize("network", [None, Network(1.0, Link(latency=0.1, bandwidth=100.0))], ids=("free", "network"))
def test_simulation(benchmark, network):
    with no_collection():
        benchmark(timeline, made("interleaved"), Costs(), network)
