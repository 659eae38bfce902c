"""Every schedule gives the single process's loss and gradients, and runs in its program's order."""

import pytest
from layouts import gradients, gradients_of_all, point
from test_parity import assert_parity, single

from suite.experiment.point import Point
from suite.experiment.point import Schedule as Options
from suite.pipeline.generators import GENERATORS, generate, placement, why_not
from suite.pipeline.names import default_chunks

FIELDS = {
    "list": {"cap": 3, "costs": [1.0, 1.5, 0.5], "chunks": 2},
    "readiness": {"cap": 5},
    "hanayo": {"chunks": 4},
}
GENERATED = [name for name in GENERATORS if name != "file"]
BATCH = 8


def of(name: str, layout: tuple[int, int, int] = (1, 2, 1), batch: int = BATCH, **sections) -> Point:
    """A point with the schedule, and one layer more than it has stages."""
    schedule = {"name": name, "chunks": default_chunks(name), **FIELDS.get(name, {})}
    layers = layout[1] * schedule["chunks"] + 1
    return point(layout, schedule, batch, model={"layers": layers, **sections.pop("model", {})}, **sections)


@pytest.mark.parametrize("p", [2, 4])
def test_where_stages_live_is_known_without_building_programs(p):
    for name in GENERATED:
        at = of(name, (1, p, 1))
        assert placement(at.schedule, p) == generate(at.schedule, p, BATCH).placement
    hint = Options.model_validate({"name": "readiness", "base": "chimera", "cap": 2})
    assert placement(hint, p) == generate(hint, p, BATCH).placement


def assert_like_one_process(at: Point, found: dict) -> None:
    assert_parity(found, single(at.model.layers, at.training.global_batch, 1, at.model.tied_embeddings))
    if at.schedule.name == "readiness":
        return
    programs = generate(at.schedule, at.parallel.pipeline, at.microbatches).programs
    for rank in found["ranks"]:
        assert tuple(rank["executed"]) == programs[rank["coords"]["pipeline"]]


@pytest.mark.processes
@pytest.mark.parametrize("p", [2, 4])
def test_every_schedule_has_the_single_process_gradients(p):
    points = [of(name, (1, p, 1)) for name in GENERATED]
    for at, found in zip(points, gradients_of_all(points), strict=True):
        assert_like_one_process(at, found)


COVERING = [
    ("zb-v", {}),
    ("v-half", {"parallel": {"sequence": True}}),
    ("chimera", {}),
    ("dualpipe", {"parallel": {"sequence": True}}),
    ("interleaved-zb", {"training": {"recompute": "full"}}),
    ("2bp-gpipe", {"parallel": {"sharding": "zero1"}}),
    ("chimera", {"parallel": {"sharding": "zero1"}}),
    ("dualpipe-v", {"parallel": {"scatter_gather": True}}),
    ("hanayo", {"training": {"recompute": "selective"}}),
    ("readiness", {}),
    ("zb-h1", {"model": {"tied_embeddings": False}}),
    ("chimera", {"model": {"tied_embeddings": False}}),
]


@pytest.mark.processes
def test_schedules_with_tensor_and_data_parallelism_have_the_single_process_gradients():
    layout = {"tensor": 2, "pipeline": 2, "data": 2}
    points = [
        of(name, (2, 2, 2), **{**sections, "parallel": {**layout, **sections.get("parallel", {})}})
        for name, sections in COVERING
    ]
    for at, found in zip(points, gradients_of_all(points), strict=True):
        assert_like_one_process(at, found)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "p", "m"), [("chimera", 4, 6), ("zb-h2", 4, 3), ("zb-v", 4, 2), ("looped-bfs", 3, 2)])
def test_odd_numbers_of_microbatches_have_the_single_process_gradients(name, p, m):
    at = of(name, (1, p, 1), batch=m)
    assert_like_one_process(at, gradients(at))


@pytest.mark.processes
def test_readiness_runs_other_schedules_as_hints_and_keeps_each_stages_order():
    hints = [{"base": "zb-h1"}, {"base": "interleaved", "chunks": 2}, {"base": "chimera"}, {"base": "gpipe"}]
    points = []
    for fields in hints:
        options = Options.model_validate({"name": "readiness", "cap": 3, **fields})
        assert why_not(options, 4, BATCH) is None
        points.append(point((1, 4, 1), options.model_dump(), BATCH, model={"layers": 9}))
    for at, found in zip(points, gradients_of_all(points), strict=True):
        assert_parity(found, single(9, BATCH, 1, True))
        programs = generate(at.schedule, 4, BATCH).programs
        for rank in found["ranks"]:
            executed, program = rank["executed"], programs[rank["coords"]["pipeline"]]
            assert sorted(executed) == sorted(program)
            for kind, stage, replica in {(a.kind, a.stage, a.replica) for a in program}:
                mine, theirs = (
                    [a for a in order if (a.kind, a.stage, a.replica) == (kind, stage, replica)]
                    for order in (executed, program)
                )
                assert mine == theirs
            for replica in {a.replica for a in program}:
                first = min(a.stage for a in program if a.replica == replica)
                live = most = 0
                for a in executed:
                    if (a.stage, a.replica) == (first, replica):
                        live += (a.kind == "F") - (a.kind in ("W", "BW"))
                        most = max(most, live)
                assert most <= 3
