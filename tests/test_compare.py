"""`suite compare` at the front door: verdicts, what cannot be compared, and with which exit code."""

import json
import shutil
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import call
from paired_records import keep, launch_of, sides
from report_records import MODEL

from suite.records.store import Store


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*arguments, code):
    """The rows of `suite compare a b ARGUMENTS`, which has to end with the code."""
    answer = call("compare", *arguments, "--json")
    assert answer.code == code, answer
    assert "Traceback" not in answer.err
    return answer.json["points"]


def edit(path, **changes):
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | changes))


def refused(*arguments):
    answer = call("compare", *arguments)
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    return answer.err


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [(0.0, "EQUIVALENT", 0), (0.05, "REGRESSION", 1), (-0.05, "IMPROVEMENT", 0), (0.019, "INCONCLUSIVE", 0)],
)
def test_verdicts_and_exit_codes(here, change, verdict, code):
    sides("a", "b", change)
    (row,) = compare("a", "b", code=code)
    assert (row["verdict"], row["pairs"], row["notes"]) == (verdict, 8, [])
    assert row["effect"] == pytest.approx(change, abs=0.004)
    assert row["ratio"] == pytest.approx(1 + change, abs=0.006)
    assert row["interval"][0] < row["effect"] < row["interval"][1]
    assert min(row["p_slower"], row["p_faster"]) >= 1 / 256
    compare("a", "b", "--strict", code=4 if verdict == "INCONCLUSIVE" else code)
    shown = call("compare", "a", "b").out
    assert verdict in shown
    assert ("pairs would decide it" in shown) == (verdict == "INCONCLUSIVE")


def test_what_is_written_is_the_same_every_time(here):
    sides("a", "b", 0.05)
    sides("a", "b", 0.0, layout=(1, 4, 1), pairs=4)
    texts = []
    for _ in range(2):
        answer = call("compare", "a", "b", "--junit", "j.xml", "--markdown", "s.md")
        texts.append((answer.out, Path("j.xml").read_bytes(), Path("s.md").read_bytes()))
    assert texts[0] == texts[1]
    suite = ElementTree.fromstring(texts[0][1])
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert "REGRESSION" in suite.find("testcase/failure").get("message")
    assert {case.get("name")[-8:] for case in suite.findall("testcase")} == {"measured"}
    summary = texts[0][2].decode()
    assert summary.startswith("### Throughput: a regression, or a point that failed (1 INCONCLUSIVE, 1 REGRESSION)")
    assert summary.count("| 2% (default) |") == 2


def test_what_a_terminal_printed_is_still_xml(here):
    sides("a", "b", pairs=1)
    keep("b", launch_of(9, 0.1, status="failed", reason="\x1b[31mno\x00", iterations=None), "def5678")
    assert call("compare", "a", "b", "--junit", "j.xml").code == 1
    (failure,) = ElementTree.parse("j.xml").iter("failure")
    assert failure.get("message") == "failed: failed: [31mno"


def test_one_launch_or_six_say_nothing_of_a_regression(here):
    sides("a", "b", 0.3, pairs=1)
    (row,) = compare("a", "b", code=0)
    assert (row["verdict"], row["interval"], row["pairs_to_decide"]) == ("INCONCLUSIVE", [None, None], 7)
    sides("c", "d", 0.3, pairs=6)
    (row,) = compare("c", "d", "--strict", code=4)
    assert (row["verdict"], row["p_slower"], row["pairs_to_decide"]) == ("INCONCLUSIVE", 1 / 64, 7)


def test_points_of_one_side_are_listed_and_are_never_a_pass(here):
    sides("a", "b")
    keep("a", launch_of(99, 0.1, (1, 2, 1)))
    keep("b", launch_of(99, 0.1, (1, 4, 1)))
    rows = compare("a", "b", code=3)
    assert [(row["standing"], row["reason"]) for row in rows] == [
        ("compared", None),
        ("unmatched", "the candidate does not have it"),
        ("unmatched", "the baseline does not have it"),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"environment": {"cpu": "another"}}, "device is a processor in the baseline and another in the candidate"),
        ({"environment": {"libraries": {"torch": "3"}}}, "torch is unknown in the baseline and 3 in the candidate"),
        ({"environment": {"threads_per_rank": 2}}, "threads_per_rank is 1 in the baseline and 2 in the candidate"),
        ({"flops_version": 2}, "flops_version is 1 in the baseline and 2 in the candidate"),
    ],
)
def test_another_machine_is_not_comparable_and_says_why(here, changes, field):
    for place in range(8):
        keep("a", launch_of(2 * place, 0.1))
        keep("b", launch_of(2 * place + 1, 0.1001, **changes))
    (row,) = compare("a", "b", code=3)
    assert (row["standing"], row["reason"]) == ("not comparable", field)
    assert compare("a", "b", "--across", field.split()[0], code=0)[0]["verdict"] == "EQUIVALENT"


def test_a_candidate_that_failed_fails(here):
    sides("a", "b")
    failed = {"status": "failed", "reason": "ValueError: no\n\ntrace", "iterations": None}
    keep("b", launch_of(50, 0.1, **failed), "def5678")
    (row,) = compare("a", "b", code=1)
    assert (row["standing"], row["reason"]) == ("failed", "failed: ValueError: no")
    keep("b", launch_of(51, 0.1), "def5678")
    (row,) = compare("a", "b", code=0)
    assert row["notes"] == [
        "launches of the candidate that gave no number: 1, the last: failed: ValueError: no",
        "launches of the candidate without a partner: 1",
    ]
    for place in range(3):
        keep("c", launch_of(place, 0.1, **failed))
        keep("d", launch_of(place + 3, 0.1, **failed))
    assert compare("c", "d", code=3)[0]["standing"] == "failed on both sides"
    assert compare("c", "a", code=3)[0]["reason"] == (
        "the baseline has no launch that can be used: failed: ValueError: no"
    )


@pytest.mark.parametrize("seconds", [float("nan"), 0.0, -1.0, float("inf")])
def test_times_that_are_none_are_no_samples(here, seconds):
    sides("a", "b")
    record = launch_of(0, 0.1)
    times = {**record.iterations.model_dump(), "seconds": [0.1] * 6 + [seconds]}
    for place in range(3):
        keep("c", launch_of(place, 0.1, iterations=times))
    (row,) = compare("a", "c", code=1)
    assert row["reason"] == "iteration times that are no positive numbers"
    assert compare("c", "a", code=3)[0]["standing"] == "not comparable"


def test_torn_and_newer_records_are_skipped_and_nothing_else_is_a_pass(here):
    sides("a", "b", pairs=7)
    files = sorted(Path("b").rglob("*.json"))
    files[0].write_bytes(files[0].read_bytes()[:100])
    edit(files[1], schema=2)
    edit(files[2], point_id="00000000")
    answer = call("compare", "a", "b", "--json")
    assert answer.code == 0
    assert [reason.split(":")[0] for reason in (one["reason"] for one in answer.json["skipped"])] == [
        "torn or not JSON",
        "schema 2, and this version of the suite reads schema 1",
        "misplaced",
    ]
    assert answer.json["points"][0]["verdict"] == "INCONCLUSIVE"
    for file in files:
        file.write_text("{")
    gone = call("compare", "a", "b")
    assert gone.code == 3
    assert "'b': nothing was measured" in gone.err
    assert "7 files were skipped, the first: torn" in gone.err


def test_sides_that_are_one_are_refused(here):
    sides("a", "b")
    assert "both sides are the same" in refused("a", "./a")
    assert "both sides are the same" in refused("abc1234", "abc1234")
    shutil.copytree("a", "copy")
    (row,) = compare("a", "copy", code=3)
    assert row["reason"] == "the same launches are on both sides"


def test_sides_that_are_not_there(here):
    sides("a", "b")
    Path("empty").mkdir()
    Path("file").touch()
    for arguments, sentence in (
        (("a", "empty"), "'empty': nothing was measured; it holds no"),
        (("a", "main"), "'main' is no folder and no baseline, and no record is of revision main; baselines in"),
    ):
        answer = call("compare", *arguments)
        assert answer.code == 3
        assert sentence in answer.err
    assert "'file' is a file" in refused("a", "file")
    assert "--results file: it is a file" in refused("x", "y", "--results", "file")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a", "b", "--tolerance", "2"), "--tolerance '2' is not above 0 % and below 100 %; 2% would work"),
        (("a", "b", "--tolerance", "-1%"), "2% would work"),
        (("a", "b", "--tolerance", "nan"), "2% would work"),
        (("a", "b", "--tolerance", "little"), "--tolerance 'little' is no percentage; 2% would work"),
        (("a", "b", "--across", "weather"), "--across weather: no field of the fingerprint; source, device"),
        (("a", "schedule=1f1b"), "an override is compared with an override"),
        (("schedule=1f1b", "schedule=gpipe"), "give it with --experiment"),
        (("a", "b", "pipeline=2"), "overrides choose points of an experiment; give it with --experiment"),
        (("a", "b", "--experiment", "quickstrat"), "there is no experiment of this name; nearest: quickstart"),
        (("a", "b", "--rules", "none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_bad_input(here, arguments, sentence):
    sides("a", "b", pairs=1)
    assert sentence in refused(*arguments)


def test_sides_measured_one_after_the_other_are_said_to_be(here):
    for place in range(8):
        keep("a", launch_of(place, 0.1 + 1e-5 * place))
        keep("b", launch_of(20 + place, 0.1 - 1e-5 * place))
    (row,) = compare("a", "b", code=0)
    assert "not measured in turns" in row["notes"][0]


def test_revisions_of_one_folder_and_the_newest_of_another(here):
    sides("results/runs", "results/runs", 0.05, pairs=7)
    assert compare("abc1234", "def5678", code=1)[0]["verdict"] == "REGRESSION"
    assert compare("def5678", "abc1234", code=0)[0]["verdict"] == "IMPROVEMENT"
    sides("other", "other2", 0.0, pairs=9)
    assert compare("other", "results/runs", code=1)[0]["effect"] == pytest.approx(0.05, abs=0.003)


def test_overrides_of_one_experiment_match_in_what_they_leave(here):
    Path("synthetic.yaml").write_text(
        f"name: synthetic\nmodel: {json.dumps(MODEL)}\ntraining: {{global_batch: 8}}\n"
        "measure: {warmup: 2, iterations: 5, trace: true}\n"
        "sweep: {grid: {schedule: [gpipe, 1f1b], pipeline: [1, 4]}}\n"
    )
    for layout, seconds in (((1, 1, 1), 0.2), ((1, 4, 1), 0.1)):
        for place in range(8):
            keep("results/runs", launch_of(2 * place, seconds * (1 + 1e-4 * place), layout, "gpipe"))
            keep("results/runs", launch_of(2 * place + 1, 0.9 * seconds * (1 + 2e-4 * place), layout, "1f1b"))
    arguments = ("schedule=gpipe", "schedule=1f1b", "--experiment", "synthetic.yaml")
    rows = compare(*arguments, code=0)
    assert [(row["verdict"], round(row["ratio"], 2)) for row in rows] == [("IMPROVEMENT", 0.9)] * 2
    assert len(compare(*arguments, "pipeline=4", code=0)) == 1
    nothing = call("compare", "schedule=gpipe", "schedule=zb-h1", "--experiment", "synthetic.yaml")
    assert nothing.code == 3
    assert "'schedule=zb-h1': no record of synthetic at scale laptop is of such a point" in nothing.err
    assert "several points differ only in what it sets" in refused(
        "schedule=[gpipe,1f1b]", "schedule=zb-h1", "--experiment", "synthetic.yaml"
    )


def test_simulated_times_have_no_noise(here):
    for folder, seconds in (("a", 0.1), ("b", 0.103), ("c", 0.101)):
        keep(folder, launch_of(0, seconds, source="simulated"))
    assert compare("a", "b", code=1)[0]["verdict"] == "REGRESSION"
    assert compare("a", "c", code=0)[0]["verdict"] == "EQUIVALENT"
    assert "exact" in call("compare", "a", "b").out
    elsewhere = {"cpu": "another", "device": None, "cores": 1}
    keep("d", launch_of(0, 0.1, source="simulated", environment={"device": None}))
    keep("e", launch_of(0, 0.101, source="simulated", environment=elsewhere))
    keep("f", launch_of(0, 0.101, source="simulated", environment={**elsewhere, "hardware": "00000000"}))
    assert compare("d", "e", code=0)[0]["verdict"] == "EQUIVALENT", "where it was computed does not matter"
    reason = "hardware is unknown in the baseline and 00000000 in the candidate"
    assert compare("d", "f", code=3)[0]["reason"] == reason


# Baselines


def test_a_baseline_is_kept_apart_for_every_machine(here):
    sides("results/runs", "new", pairs=8)
    assert call("baseline", "main", "synthetic").code == 0
    assert compare("main", "new", code=0)[0]["verdict"] == "EQUIVALENT"
    shutil.rmtree("results/runs")
    shutil.copytree("new", "results/runs")
    for file in Path("results/runs").rglob("*.json"):
        raw = json.loads(file.read_text())
        edit(file, environment={**raw["environment"], "cpu": "another"})
    (row,) = compare("main", "results/runs", code=3)
    assert row["reason"] == "device is a processor in the baseline and another in the candidate"
    assert call("baseline", "main", "synthetic").code == 0
    assert len(list(Path("results/baselines/main").iterdir())) == 2
    assert compare("main", "new", code=0)[0]["verdict"] == "EQUIVALENT", "the first machine's is still there"
    (own,) = Path("results/baselines/main").glob("*/synthetic/laptop/measured/*/def5678-0.json")
    assert call("baseline", "main", "synthetic", "--results", str(own.parents[4])).code == 0, "onto itself"
    again = call("baseline", "main", "synthetic")
    assert "8 launches in results/baselines/main" in again.out
    assert len(list(Path("results/baselines").rglob("*.json"))) == 16, "saved again, it is not doubled"


def test_baselines_that_cannot_be(here):
    nothing = call("baseline", "main", "quickstart")
    assert (nothing.code, nothing.err[:16]) == (3, "nothing to save:")
    sides("results/runs", "new", pairs=1)
    wrong = call("baseline", "../main", "synthetic")
    assert wrong.code == 2
    assert "'../main' cannot name a baseline" in wrong.err
    Path("results/baselines/main/00000000/synthetic").mkdir(parents=True)
    empty = call("compare", "main", "new")
    assert empty.code == 3
    assert "baseline 'main' has no record of any experiment" in empty.err


# Thresholds and waivers


def test_the_most_specific_threshold_applies_and_is_shown(here):
    sides("a", "b", 0.05)
    point = Store("a").read("synthetic")[0][0].point_id
    for text, arguments, expected in (
        ("tolerance: 10%", (), (0.10, "default")),
        ("tolerance: 10%", ("--tolerance", "3%"), (0.03, "--tolerance")),
        ("experiments: {synthetic: {tolerance: 8%}}", ("--tolerance", "3%"), (0.08, "experiment")),
        (f"experiments: {{synthetic: {{tolerance: 8%, points: {{'{point}': 0.09}}}}}}", (), (0.09, "point")),
        ("experiments: {other: {tolerance: 8%}}", (), (0.02, "default")),
    ):
        Path("regression.yaml").write_text(text)
        (row,) = compare("a", "b", *arguments, code=int(expected[0] < 0.05))
        assert (row["tolerance"], row["tolerance_from"]) == expected
        assert f"{100 * expected[0]:g}% ({expected[1]})" in call("compare", "a", "b", *arguments).out


def test_a_waiver_lets_a_regression_pass_until_its_day(here):
    sides("a", "b", 0.05)
    point = Store("a").read("synthetic")[0][0].point_id
    waiver = "waivers: [{{experiment: synthetic, point: '{}', until: {}, reason: new driver}}]"
    Path("regression.yaml").write_text(waiver.format(point, date.today()))
    (row,) = compare("a", "b", code=0)
    assert (row["verdict"], row["waived"]) == ("REGRESSION", True)
    assert f"waived until {date.today()}: new driver" in call("compare", "a", "b").out
    Path("regression.yaml").write_text(waiver.format(point, "2026-01-02"))
    assert not compare("a", "b", code=1)[0]["waived"]
    assert "the waiver has expired: until 2026-01-02: new driver" in call("compare", "a", "b").out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tolerance: 3", "regression.yaml:1:12: tolerance: '3' is not above 0 % and below 100 %; 3% would work"),
        ("tolerence: 3%", "tolerence: unknown key; nearest: tolerance"),
        ("[1]", "it must be a mapping"),
        ("experiments: {x: {points: {ab: lots}}}", "experiments.x.points.ab: 'lots' is no percentage"),
        ("waivers: [{experiment: x, point: ab, until: 2027-01-31}]", "waivers.reason: a waiver needs it, as text"),
        (
            "waivers: [{experiment: x, point: ab, until: soon, reason: y}]",
            "waivers.until: got 'soon'; it must be a day",
        ),
        ("waivers: [{experiment: x, point: ab, reason: y}]", "waivers.until: a waiver needs it"),
        ("waivers: {}", "it must be a list of waivers"),
    ],
)
def test_rules_that_are_wrong(here, text, sentence):
    sides("a", "b", pairs=1)
    Path("regression.yaml").write_text(text)
    assert sentence in refused("a", "b")
