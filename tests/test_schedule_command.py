"""`suite schedule`: several schedules, one from a file, and the measured timeline of a record."""

import json
import re

import pytest
from command import call

from suite.experiment.point import Schedule as Options
from suite.pipeline.generators import generate
from suite.pipeline.timeline import Costs, Link, Network, timeline

SIZES = ("--stages", "2", "--microbatches", "4")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_record(path, name="1f1b", stages=2, microbatches=4, chunks=1, **fields):
    """A record whose trace has forwards of 0.2 s and backwards of 0.3 s of a rank's share, each 0.1 s late."""
    options = Options(name=name, chunks=chunks)
    late = 0.1
    times = timeline(generate(options, stages, microbatches), Costs(0.2 + late, 0.2 + late, 0.1))
    spans = [
        {"rank": rank, "kind": a.kind, "stage": a.stage, "microbatch": a.microbatch}
        | {"start": start + late / chunks, "end": end}
        for row in times.ranks
        for rank, a, start, end in row
    ]
    record = {
        "source": "measured",
        "point": {"schedule": options.model_dump()},
        "trace": {"iteration": 3, "spans": spans},
    }
    path.write_text(json.dumps(record | fields))
    return spans


def test_several_schedules_are_drawn_under_each_other_with_bubble_and_peak_in_their_titles():
    answer = call("schedule", "gpipe", "1f1b", "interleaved", *SIZES, "--chunks", "4")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert [line for line in lines if ":" in line] == [
        "gpipe: 2 stages, 4 microbatches; bubble 0.25 of ideal compute, peak 4 microbatches in flight",
        "1f1b: 2 stages, 4 microbatches; bubble 0.25 of ideal compute, peak 2 microbatches in flight",
        "interleaved: 2 stages, 4 microbatches, 4 chunks; bubble 0.0625 of ideal compute, peak 2.25 microbatches in "
        "flight",
    ]
    assert len([line for line in lines if line.startswith("rank")]) == 6
    rows = call("schedule", "gpipe", "interleaved", *SIZES, "--chunks", "4", "--json").json
    assert [(row["schedule"], row["chunks"], row["bubble_over_ideal"]) for row in rows] == [
        ("gpipe", 1, 0.25),
        ("interleaved", 4, 0.0625),
    ]


def test_text_is_cut_in_a_pipe_and_whole_in_a_file(here):
    arguments = ("schedule", "1f1b", "--stages", "2", "--microbatches", "100")
    piped = [line for line in call(*arguments).out.splitlines() if line.startswith("rank")]
    assert [(len(line), line[-1]) for line in piped] == [(200, "…")] * 2
    assert call(*arguments, "--out", "drawing").code == 0
    whole = [line for line in (here / "drawing").read_text().splitlines() if line.startswith("rank")]
    assert all(line.endswith("|") and "B99" in line for line in whole)


@pytest.mark.parametrize("form", ["torch-csv", "torch-csv-comms", "program-json"])
def test_what_is_exported_is_read_and_drawn_the_same(here, form):
    arguments = ("interleaved", *SIZES, "--chunks", "2")
    assert call("schedule", *arguments, "--format", form, "--out", "interleaved").code == 0
    assert call("schedule", "file", "--file", "interleaved").out == call("schedule", *arguments).out
    assert (
        call("schedule", "--file", "interleaved", *SIZES, "--json").json == call("schedule", *arguments, "--json").json
    )
    both = call("schedule", "1f1b", "file", "--file", "interleaved", "--json").json
    assert [(row["schedule"], row["stages"], row["microbatches"]) for row in both] == [
        ("1f1b", 2, 4),
        ("interleaved", 2, 4),
    ]


def test_a_records_trace_is_drawn_under_its_schedule_at_the_mean_of_its_times(here):
    spans = write_record(here / "record.json", "interleaved", 2, 4, 2)
    answer = call("schedule", "--trace", "record.json", "--out", "drawing")
    assert (answer.code, answer.err) == (0, "")
    titles = [line for line in (here / "drawing").read_text().splitlines() if "; bubble" in line]
    assert titles[0].startswith("interleaved: 2 stages, 4 microbatches, 2 chunks; bubble 0.125 of")
    assert titles[1].startswith("measured; bubble ")
    numbers = call("schedule", "--trace", "record.json", "--json").json
    assert numbers["work"] == pytest.approx(4 * (0.2 + 0.3))
    assert numbers["makespan"] == pytest.approx(4 * 0.5 + 0.5 / 2)
    assert numbers["measured"]["makespan"] == pytest.approx(
        max(span["end"] for span in spans) - min(span["start"] for span in spans)
    )
    assert numbers["measured"]["bubble_over_ideal"] > numbers["bubble_over_ideal"]
    assert call("schedule", "interleaved", "--trace", "record.json", "--json").json == numbers


def test_a_records_trace_and_its_prediction_are_two_processes_of_one_perfetto_file(here):
    spans = write_record(here / "record.json")
    events = json.loads(call("schedule", "--trace", "record.json", "--format", "perfetto").out)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[0].startswith("1f1b: 2 stages, 4 microbatches")
    assert names[1].startswith("measured")
    ran = [event for event in events if event["ph"] == "X"]
    assert [len([event for event in ran if event["pid"] == process]) for process in (0, 1)] == [16, 16]
    measured = {event["name"]: event for event in ran if event["pid"] == 1}
    for span in spans:
        event = measured[f"{span['kind']} {span['stage']}.{span['microbatch']}"]
        assert event["ts"] == pytest.approx(1e6 * span["start"])
        assert event["dur"] == pytest.approx(1e6 * (span["end"] - span["start"]))
    predicted = {event["name"]: event for event in ran if event["pid"] == 0}
    assert predicted["F 1.0"]["dur"] == pytest.approx(0.2e6)
    assert predicted["BW 1.0"]["dur"] == pytest.approx(0.3e6)


SPAN = {"rank": 0, "kind": "F", "stage": 0, "microbatch": 0, "start": 0.0, "end": 1.0}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"trace": None}, "the record has no trace; measure.trace=true"),
        ({"point": {}}, "is not the record of a launch"),
        ({"trace": {"iteration": 1, "spans": [{**SPAN, "rank": "x"}]}}, "trace.spans.0.rank: "),
        ({"trace": {"iteration": 1, "spans": [{**SPAN, "rank": 1}]}}, "has actions of ranks [1]; they count from 0"),
        ({"trace": {"iteration": 1, "spans": []}}, "has actions of ranks []"),
        ({"trace": {"iteration": 1, "spans": [{**SPAN, "end": -1.0}]}}, "an action from 0.0 to -1.0 s"),
        (
            {"trace": {"iteration": 1, "spans": [{**SPAN, "end": float("inf")}]}},
            "trace.spans.0.end: Input should be a finite number",
        ),
        ({"trace": {"iteration": 1, "spans": [SPAN]}}, "rank 0, position 1: nothing more, where 1f1b has BW 0.0"),
        (
            {"trace": {"iteration": 1, "spans": [{**SPAN, "end": 0.0}, {**SPAN, "kind": "BW", "start": 1.0}]}},
            "the actions of kind F took no time at all",
        ),
        ({"point": {"schedule": {"name": "1f1c"}}}, "there is no schedule '1f1c'"),
    ],
)
def test_a_record_that_cannot_be_drawn_is_refused(here, fields, sentence):
    write_record(here / "record.json", **fields)
    answer = call("schedule", "--trace", "record.json")
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((), ["no schedule is named", "1f1b --stages 4 --microbatches 8 would work"]),
        (("1f1b", "--microbatches", "4"), ["--stages is missing", "--stages 4 --microbatches 8 would work"]),
        (("1f1b", *SIZES, "--file", "x.csv"), ["--file x.csv", "suite schedule file --file"]),
        (("file", *SIZES), ["file needs --file PATH"]),
        (("file", "--file", "nowhere.csv"), ["nowhere.csv: No such file"]),
        (("file", "--file", "."), [".: Is a directory"]),
        (("file", "--file", "broken.csv"), ["broken.csv: rank 0: 0B0 is missing"]),
        (("file", "--file", "good.csv", "--stages", "3"), ["--stages 3", "good.csv has 1"]),
        (("file", "--file", "good.csv", "--microbatches", "3"), ["--microbatches 3", "good.csv has 1"]),
        (("file", "--file", "good.csv", "--chunks", "2"), ["--chunks 2", "good.csv has 1"]),
        (("1f1b", *SIZES, "--json", "--out", "x"), ["--json", "neither --format nor --out"]),
        (("1f1b", *SIZES, "--json", "--format", "text"), ["--json", "neither --format nor --out"]),
        (("1f1b", "gpipe", *SIZES, "--format", "torch-csv"), ["--format torch-csv holds one schedule"]),
        (("--trace", "record.json", "--format", "csv"), ["--format csv holds one schedule"]),
        (("--trace", "record.json", "--cost", "1,1,1"), ["--trace takes the times", "leave --cost out"]),
        (("1f1b", "gpipe", "--trace", "record.json"), ["record.json: a record ran one schedule, but 2 are named"]),
        (
            ("gpipe", "--trace", "record.json"),
            ["another schedule (1f1b): rank 0, position 2: BW 0.0, where gpipe has F 0.2"],
        ),
        (
            ("--trace", "record.json", "--microbatches", "5"),
            ["ran another schedule", "position 7: BW 0.3, where 1f1b has F 0.4"],
        ),
        (("--trace", "wide.json", "--stages", "1"), ["the record ran 2 stages, and 1f1b has 1; leave --stages out"]),
        (("--trace", "good.csv"), ["good.csv: is not the record of a launch"]),
        (("--trace", "nowhere.json"), ["nowhere.json: No such file"]),
        (
            ("1f1b", "--stages", "1000", "--microbatches", "10000"),
            ["has 20000000 actions, more than the 2000000", "1000 microbatches would work"],
        ),
        (("1f1b", *SIZES, "--cost", "1e-7,1,1"), ["from 1e-06 to 1e+06", "--cost 1,1,1 would work"]),
        (("1f1b", *SIZES, "--cost", "1e7,1,1"), ["from 1e-06 to 1e+06"]),
        (("1f1b", *SIZES, "--cost", "nan,1,1"), ["from 1e-06 to 1e+06"]),
        (("1f1b", *SIZES, "--cost", "1,inf,1"), ["from 1e-06 to 1e+06"]),
        (("1f1b", *SIZES, "--cost", "1,1,20000"), ["the largest cost may be 10000 times the smallest"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(here, arguments, fragments):
    (here / "broken.csv").write_text("0F0\n")
    (here / "good.csv").write_text("0F0,0B0\n")
    write_record(here / "record.json")
    first = [{**SPAN, "microbatch": 0}, {**SPAN, "kind": "BW", "start": 1.0, "end": 2.0}]
    write_record(here / "wide.json", trace={"iteration": 1, "spans": [*first, {**SPAN, "rank": 1}]})
    answer = call("schedule", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert all(fragment in answer.err for fragment in fragments), answer.err
    assert len(answer.err.splitlines()) == 1


def _shown(arguments):
    return call("schedule", *arguments.split(), "--stages", "4", "--microbatches", "16", "--json").json


def test_a_list_is_made_for_the_times_that_it_is_shown_with():
    chosen = Options(name="list", cap=6, costs=(1, 1.5, 0.5), latency=0.3, kept=0.5)
    times = timeline(generate(chosen, 4, 16), Costs(1, 1.5, 0.5), Network(link=Link(0.3)))
    shown = _shown("list --cap 6 --kept 0.5 --cost 1,1.5,0.5 --latency 0.1 --transfer 0.2")
    assert shown["bubble_span"] == pytest.approx(times.bubble_span)


@pytest.mark.parametrize("base", ["1f1b", "list"])
def test_only_a_list_is_made_for_the_times(base):
    assert _shown(f"readiness --base {base} --cap 4 --cost 1,2,1 --latency 0.3")["schedule"] == "readiness"


def test_extreme_costs_that_are_allowed_give_finite_numbers():
    for cost in ("1e-6,1e-2,1e-6", "1e6,1e2,1e6", "1,1e4,1"):
        answer = call("schedule", "1f1b", "--stages", "8", "--microbatches", "16", "--cost", cost, "--json")
        assert answer.code == 0
        assert not re.search(r"Infinity|NaN", answer.out)
        assert call("schedule", "1f1b", "--stages", "8", "--microbatches", "16", "--cost", cost).code == 0
