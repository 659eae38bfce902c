"""What the fields of a schedule mean, which sizes suit it, and that what a refusal proposes would work."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import built, peaks
from test_experiment_identity import _id

from suite.experiment.point import Schedule as Options
from suite.pipeline.generators import GENERATORS, MOST_ACTIONS, generate, why_not
from suite.pipeline.generators.interleaved import allowed_groups
from suite.pipeline.names import SCHEDULE_NAMES, default_chunks
from suite.pipeline.proof import prove

GENERATED = tuple(name for name in SCHEDULE_NAMES if name != "file")


def followed(problem: str, options: Options, p: int, m: int) -> tuple[Options, int, int]:
    """Options and sizes after the first thing that the sentence says would work."""
    fields: dict[str, Any] = {}
    if found := re.search(r"leave schedule\.(\w+) out", problem):
        fields[found[1]] = Options.model_fields[found[1]].default
    elif found := re.search(r"schedule\.(chunks|cap|group)=(\d+) would work", problem):
        fields[found[1]] = int(found[2])
    elif found := re.search(r"schedule\.(name|base)=(\S+) would work", problem):
        fields[found[1]] = found[2]
    elif found := re.search(r"schedule\.group in \[(\d+)", problem):
        fields["group"] = int(found[1])
    elif found := re.search(r"parallel\.pipeline=(\d+) with (\d+) microbatches would work", problem):
        p, m = int(found[1]), int(found[2])
    elif found := re.search(r"(\d+)(?: or \d+)? microbatches would work", problem):
        m = int(found[1])
    else:
        raise AssertionError(f"no suggestion in: {problem}")
    return options.model_copy(update=fields), p, m


OPTIONS = st.builds(
    Options,
    name=st.sampled_from([name for name in SCHEDULE_NAMES if name != "file"]),
    chunks=st.integers(1, 4),
    group=st.none() | st.integers(1, 20),
    cap=st.none() | st.integers(1, 9),
    base=st.none() | st.sampled_from(SCHEDULE_NAMES),
    file=st.none() | st.just("x.csv"),
    costs=st.sampled_from([(1, 1, 1), (1, 1.5, 0.7)]),
)


@settings(max_examples=600, deadline=None)
@given(options=OPTIONS, p=st.integers(1, 6), m=st.integers(1, 16))
def test_a_schedule_is_generated_and_proves_or_is_refused_with_what_would_work(options, p, m):
    said: set[str] = set()
    while problem := why_not(options, p, m):
        with pytest.raises(ValueError, match=re.escape(problem)):
            generate(options, p, m)
        assert problem not in said
        said.add(problem)
        options, p, m = followed(problem, options, p, m)
    schedule = generate(options, p, m)
    assert (schedule.name, schedule.stages, schedule.microbatches) == (options.name, p, m)
    assert schedule.chunks == options.chunks
    prove(schedule)


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 24)])
def test_every_schedule_proves_with_its_defaults_and_is_what_its_facts_say(name, p, m):
    schedule = built(name, p, m, **({"cap": 2} if name == "readiness" else {}))
    proof = prove(schedule)
    facts = GENERATORS[name]
    assert list(proof.peak_activations) == peaks(schedule)
    assert schedule.chunks == default_chunks(name)
    assert len(schedule.placement) == facts.replicas
    kinds = {action.kind for program in schedule.programs for action in program}
    assert ({"B", "W"} <= kinds) == facts.splits_backward
    assert re.search(r"(19|20)\d\d, arXiv:\d{4}\.\d{5}", facts.paper)


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_two_replicas_share_the_microbatches_by_parity(name):
    schedule = built(name, 4, 8)
    assert schedule.placement == ((0, 1, 2, 3), (3, 2, 1, 0))
    for rank, program in enumerate(schedule.programs):
        for action in program:
            assert action.replica == action.microbatch % 2
            assert schedule.placement[action.replica][action.stage] == rank


def test_readiness_takes_the_programs_of_its_base_as_a_hint():
    for base, fields in {"1f1b": {}, "interleaved": {"chunks": 3, "group": 8}, "zb-v": {"chunks": 2}}.items():
        hint = built("readiness", 4, 8, cap=6, base=base, **fields)
        assert (hint.name, hint.cap) == ("readiness", 6)
        assert hint.programs == built(base, 4, 8, **fields).programs
    listed = built("readiness", 4, 8, cap=3, base="list", costs=(1, 2, 1))
    assert listed.cap == 3
    assert listed.programs == built("list", 4, 8, cap=3, costs=(1, 2, 1)).programs
    assert built("readiness", 4, 8, cap=6).programs == built("1f1b", 4, 8).programs


SENTENCES = [
    (
        {"name": "zb-h1", "chunks": 2},
        "schedule.chunks=2: zb-h1 has one model chunk per rank; schedule.chunks=1 would work, or schedule=interleaved",
    ),
    (
        {"name": "zb-v", "chunks": 1},
        "schedule.chunks=1: zb-v has exactly two model chunks per rank; schedule.chunks=2 would work",
    ),
    (
        {"name": "hanayo", "chunks": 3},
        "schedule.chunks=3: hanayo has two model chunks per rank for each wave; schedule.chunks=4 would work",
    ),
    (
        {"name": "looped-bfs", "group": 4},
        "schedule.group=4: looped-bfs has no groups; leave schedule.group out, or use schedule=interleaved",
    ),
    (
        {"name": "gpipe", "base": "1f1b"},
        "schedule.base=1f1b: gpipe is not made from another schedule; leave schedule.base out, or use "
        "schedule=readiness",
    ),
    (
        {"name": "v-min", "costs": (1, 2, 1)},
        "schedule.costs=[1.0, 2.0, 1.0]: v-min is not made for given costs; leave schedule.costs out, or use "
        "schedule=list",
    ),
    (
        {"name": "zb-h2", "latency": 0.5},
        "schedule.latency=0.5: zb-h2 is not made for a given latency; leave schedule.latency out, or use schedule=list",
    ),
    (
        {"name": "readiness", "cap": 4, "kept": 0.5},
        "schedule.kept=0.5: 1f1b does not go by what is kept for W; leave schedule.kept out, or use schedule=list",
    ),
    (
        {"name": "list", "file": "x.csv"},
        "schedule.file=x.csv: list is not read from a file; leave schedule.file out, or use schedule=file",
    ),
    (
        {"name": "chimera"},
        "parallel.pipeline=5: chimera runs two replicas in opposite directions, which takes an even number of stages; "
        "parallel.pipeline=4 with 7 microbatches would work",
    ),
    (
        {"name": "dualpipe"},
        "parallel.pipeline=5: dualpipe runs two replicas in opposite directions, which takes an even number of stages; "
        "parallel.pipeline=4 with 8 microbatches would work",
    ),
    (
        {"name": "dualpipe-v"},
        "dualpipe-v needs at least two microbatches (7) for each of the 5 stages; 10 microbatches would work",
    ),
    (
        {"name": "interleaved-zb"},
        "interleaved-zb needs the number of microbatches (7) to be a multiple of the pipeline size (5); 5 or 10 "
        "microbatches would work, or schedule.group=7",
    ),
    (
        {"name": "readiness"},
        "schedule.cap=null: readiness has no order that would limit the microbatches in flight; schedule.cap=10 would "
        "work",
    ),
    (
        {"name": "readiness", "cap": 4, "base": "readiness"},
        "schedule.base=readiness: readiness takes its hint from a schedule that is generated; schedule.base=1f1b would "
        "work",
    ),
    (
        {"name": "readiness", "cap": 4, "base": "v-half", "chunks": 1},
        "schedule.chunks=1: v-half has exactly two model chunks per rank; schedule.chunks=2 would work",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), SENTENCES)
def test_what_does_not_suit_five_stages_and_seven_microbatches(fields, sentence):
    assert why_not(Options(**fields), 5, 7) == sentence


def test_two_directions_say_how_many_microbatches_they_need():
    assert why_not(Options(name="dualpipe"), 4, 9) == (
        "dualpipe needs an even number of microbatches (9), at least two for each of the 4 stages; 10 microbatches "
        "would work"
    )
    assert why_not(Options(name="chimera"), 4, 1) == (
        "chimera needs at least one microbatch (1) for each of its two replicas; 2 microbatches would work"
    )
    assert "8 microbatches would work" in why_not(Options(name="dualpipe"), 4, 6)


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("p", [4, 64])
def test_more_actions_than_are_worth_listing_are_refused_with_a_number_that_works(name, p):
    options = Options(name=name, **({"cap": 4} if name == "readiness" else {}))
    problem = why_not(options, p, 10**9)
    assert f"more than the {MOST_ACTIONS} of the largest schedule" in problem
    options, p, m = followed(problem, options, p, 10**9)
    assert why_not(options, p, m) is None
    actions_each = (3 if GENERATORS[name].splits_backward else 2) * p * options.chunks
    assert MOST_ACTIONS - 2 * p * actions_each < m * actions_each <= MOST_ACTIONS


def test_where_no_number_of_microbatches_works_the_sentence_says_so():
    assert why_not(Options(name="gpipe"), 10**7, 1).endswith(
        "more than the 2000000 of the largest schedule; fewer stages, chunks or microbatches would work"
    )


def test_groups_of_any_number_of_microbatches_are_found_at_once():
    assert allowed_groups(8, 10**12, most=3) == [8, 10, 14]
    assert allowed_groups(4, 3) == [3]
    assert all(m % n == 0 or m % n >= p for p, m in [(4, 27), (3, 10)] for n in allowed_groups(p, m))


def test_costs_at_their_default_make_no_other_point():
    assert _id(schedule={"name": "list", "costs": [1, 1, 1]}) == _id(schedule="list")
    assert _id(schedule={"name": "list", "latency": 0, "kept": 1}) == _id(schedule="list")
    for field, value in (("costs", [1, 2, 1]), ("latency", 0.1), ("kept", 0.5)):
        assert _id(schedule={"name": "list", field: value}) != _id(schedule="list")
