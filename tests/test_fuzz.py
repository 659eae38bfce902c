"""Random valid configurations, each held to the single process's loss, norm and gradients in fp64.

The time spent is SUITE_FUZZ_SECONDS (10 where it is not set); a long run is `SUITE_FUZZ_SECONDS=1200 pytest -s
tests/test_fuzz.py`, which prints how many configurations it held.
"""

import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import gradients, point
from test_parity import assert_parity

from suite.experiment.catalogue import load_cluster
from suite.experiment.point import Point
from suite.experiment.validity import violations

SECONDS = float(os.environ.get("SUITE_FUZZ_SECONDS", "10"))
MOST = int(8 * SECONDS)  # more than the time allows; what is drawn later is passed over

LAYOUTS = [(t, p, d) for t in (1, 2, 3, 4) for p in (1, 2, 3, 4) for d in (1, 2, 3, 4) if 1 < t * p * d <= 8]


@st.composite
def configurations(draw: st.DrawFn) -> tuple[Point, Point]:
    """A valid point on several ranks, and the same training on one."""
    tensor, pipeline, data = draw(st.sampled_from(LAYOUTS))
    chunks = draw(st.integers(1, 3))
    microbatch, microbatches = draw(st.integers(1, 2)), draw(st.integers(1, 6))
    schedule: dict[str, Any] = {"name": draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "interleaved"]))}
    if schedule["name"] == "interleaved":
        groups = st.one_of(st.none(), st.integers(pipeline, 6))
        schedule |= {"chunks": chunks, "group": draw(groups)}
    elif chunks > 1:
        chunks = 1
    heads = 12 if tensor == 3 else 4
    stages = pipeline * chunks
    model = {
        "layers": stages + draw(st.integers(0, 2)),
        "heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4])),
        "ffn_hidden_size": 12 * draw(st.integers(1, 4)),
        "vocab_size": draw(st.integers(2, 300)),
        "seq_length": 12,
        "dropout": draw(st.sampled_from([0.0, 0.1, 0.6])),
        "tied_embeddings": draw(st.booleans()),
    }
    if draw(st.booleans()) and model["layers"] > stages:
        schedule["split"] = [1] * (stages - 1) + [model["layers"] - stages + 1]
    training = {
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "recompute_layers": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 3)),
    }
    parallel = {
        "tensor": tensor,
        "pipeline": pipeline,
        "data": data,
        "sequence": draw(st.booleans()),
        "scatter_gather": draw(st.booleans()),
        "sharding": draw(st.sampled_from(["none", "zero1", "zero3"])),
        "order": draw(st.permutations(["tensor", "data", "pipeline"])),
    }
    kernels = draw(st.sampled_from(["auto", "reference", {"attention": "reference"}, {"layer_norm": "reference"}]))
    batch = microbatch * microbatches * data
    layout = (tensor, pipeline, data)
    sections = {"model": model, "parallel": parallel, "training": training}
    many = point(layout, schedule, batch, microbatch, **sections).model_copy(update={"kernels": kernels})
    one = point(batch=batch, model=model, training={"seed": training["seed"]})
    return many, one


HELD: list[str] = []
END: list[float] = []  # set when the first configuration starts


@pytest.mark.processes
@settings(max_examples=MOST, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(configurations())
def test_random_configurations_have_the_single_process_gradients(pair):
    many, one = pair
    if not END:
        END.append(time.monotonic() + SECONDS)
    if time.monotonic() > END[0] or violations(many, load_cluster("local")):
        return
    assert_parity(gradients(many), gradients(one))
    HELD.append(many.id)


def test_enough_configurations_were_held():
    print(f"{len(set(HELD))} different configurations held in {SECONDS:g} s")
    assert len(set(HELD)) >= 3
