"""Claims: every one has a check, the paper's own numbers come out as listed, and every kind of verdict from records."""

from pathlib import Path

import pytest
from paper_records import RATES, experiment_of, points_of, predicted_memory, record_at, seconds_at, simulated_figure_12

from suite.experiment.catalogue import experiments_in, load_experiment
from suite.records.store import Store
from suite.report.claims.check import Computed, Seen
from suite.report.claims.evidence import PAPER_SCALE, Evidence
from suite.report.claims.judge import (
    CHECKS,
    INCONSISTENT,
    MISSING,
    NOT_REPRODUCED,
    REPRODUCED,
    UNTESTABLE,
    claims_table,
    claims_text,
    judge,
    summary,
)
from suite.report.claims.listed import read_claims

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = {claim.id: claim for claim in read_claims()}


@pytest.fixture(scope="module")
def shipped():
    """The shipped experiments of the paper, without a record."""
    folder = ROOT / "experiments" / "paper"
    return {file.stem: load_experiment(file) for file in sorted(folder.glob("*.yaml"))}


@pytest.fixture
def figure_12(tmp_path):
    return experiment_of(tmp_path)


def judged(ids, experiments, *folders):
    """The verdicts on some claims by their ids."""
    found = judge([CLAIMS[name] for name in ids], Evidence(experiments, folders))
    return {verdict.claim.id: verdict for verdict in found}


def kept(folder, *records):
    for record in records:
        Store(folder).write(record, "abc1234")
    return folder


def test_every_listed_claim_has_a_check_and_every_check_a_claim():
    assert CHECKS.keys() == CLAIMS.keys()


def test_the_checks_say_of_the_papers_own_numbers_what_the_list_says(shipped):
    """By the very code that judges records; what the list has as partly or mostly so may be either."""
    lens = Evidence(shipped, []).lens("published", PAPER_SCALE)
    said = {
        name: check.of(CLAIMS[name], lens).holds
        for name, check in CHECKS.items()
        if isinstance(check, Seen) and CLAIMS[name].supported_by_paper != "n/a"
    }
    assert {name for name, holds in said.items() if not holds} == {"F13-03", "F14-02", "F17-01", "F18-02"}
    assert {CLAIMS[name].supported_by_paper for name, holds in said.items() if not holds} == {
        *("no", "no trend", "direction only")
    }
    assert len(said) > 35


def test_arithmetic_and_schedules_need_no_record(shipped):
    ids = [name for name, check in CHECKS.items() if isinstance(check, Computed)]
    found = judged(ids, shipped)
    assert {name for name, verdict in found.items() if verdict.verdict != REPRODUCED} == {"TT-03"}
    assert found["TT-03"].verdict == NOT_REPRODUCED
    assert found["TT-03"].why.startswith("equation 3 is 11.6, 9.3, 7.2,"), "with the number"
    assert found["T1-05"].here["computed"].text == "10 rows, at most 0.050 billion apart"
    assert found["TT-02"].why == "83.9 days by equation 4 and 85.0 by equation 3, against 84"
    assert found["AN-05"].why.startswith("refused: interleaved needs the number of microbatches (6)")


def test_what_cannot_be_tested_says_why_and_what_contradicts_itself_by_which_number(shipped):
    found = judged(["OP-03", "BW-01", "TT-05", "IN-01", "IN-02", "IN-09"], shipped)
    assert {verdict.verdict for name, verdict in found.items() if not name.startswith("IN")} == {UNTESTABLE}
    assert found["BW-01"].why == "what the paper calls effective bisection bandwidth is not defined"
    assert "34.6 TFLOP/s" in found["TT-05"].why
    assert {found[name].verdict for name in ("IN-01", "IN-02", "IN-09")} == {INCONSISTENT}
    assert found["IN-01"].why == "8.1 % to 45.1 %"
    assert found["IN-02"].why == "best over worst 1.54"
    assert found["IN-09"].why == "33.8 and 83.9 days by equation 4, 34.7 and 85.0 by equation 3"


def test_without_records_the_verdict_says_what_to_run(figure_12):
    verdict = judged(["F12-01"], {"figure-12": figure_12})["F12-01"]
    assert (verdict.verdict, verdict.why) == (MISSING, "no simulated record; suite run figure-12 --on simulate")
    assert verdict.published.text == "5 of 5"
    missing = judged(["F13-01"], {"figure-12": figure_12})["F13-01"]
    assert (missing.verdict, missing.why) == (MISSING, "there is no experiment figure-13")


def test_a_sweep_that_lacks_a_point_decides_nothing(figure_12, tmp_path):
    planned = figure_12.path.read_text().replace("model: gpt-175b", "cluster: selene\n    model: gpt-175b")
    experiment = experiment_of(tmp_path, planned)
    folder = kept(tmp_path / "runs", *simulated_figure_12(experiment)[:7])
    verdict = judged(["F12-01"], {"figure-12": experiment}, folder)["F12-01"]
    assert verdict.verdict == MISSING
    assert verdict.why == "3 points of figure-12 have no simulated record; suite run figure-12 --on simulate"


def test_simulated_records_reproduce_a_claim_or_do_not(figure_12, tmp_path):
    experiments = {"figure-12": figure_12}
    good = kept(tmp_path / "good", *simulated_figure_12(figure_12))
    found = judged(["F12-01", "F12-02", "F12-05"], experiments, good)
    assert {verdict.verdict for verdict in found.values()} == {REPRODUCED}
    assert found["F12-01"].here["simulated"].text == "5 of 5"
    leads = [100 * (b / a - 1) for a, b in zip(RATES["1f1b"], RATES["interleaved"], strict=True)]
    assert found["F12-02"].here["simulated"].text.startswith(", ".join(f"{lead:.1f}" for lead in leads) + " %")
    records = simulated_figure_12(figure_12)
    last = points_of(figure_12, "paper")[-1]
    slow = record_at(figure_12, "paper", last, seconds_at(last, 130))
    assert last.training.global_batch == 60
    bad = kept(tmp_path / "bad", *(record for record in records if record.point_id != last.id), slow)
    changed = judged(["F12-01"], experiments, bad)["F12-01"]
    assert (changed.verdict, changed.why) == (NOT_REPRODUCED, "4 of 5")
    assert changed.published.holds
    assert claims_table([changed]).failed == [True]


def test_what_was_measured_at_the_papers_scale_decides_and_a_laptop_shows_directions_only(figure_12, tmp_path):
    experiments = {"figure-12": figure_12}

    def measured(scale, interleaved):
        return [
            record_at(
                *(figure_12, scale, point),
                point.training.global_batch * (interleaved if point.schedule.chunks > 1 else 1.0),
                "measured",
                environment={},
            )
            for point in points_of(figure_12, scale)
        ]

    laptop = kept(tmp_path / "laptop", *measured("laptop", 0.9))
    alone = judged(["F12-01", "F12-05"], experiments, laptop)
    assert alone["F12-01"].verdict == REPRODUCED
    assert list(alone["F12-01"].here) == ["measured, laptop"]
    assert alone["F12-05"].verdict == MISSING, "a number of the paper's scale is not held against a laptop's"
    simulated = kept(tmp_path / "simulated", *simulated_figure_12(figure_12))
    cluster = kept(tmp_path / "cluster", *measured("paper", 1.1))
    everything = judged(["F12-01"], experiments, laptop, simulated, cluster)["F12-01"]
    assert everything.verdict == NOT_REPRODUCED
    assert {name: found.holds for name, found in everything.here.items()} == {
        "measured": False,
        "simulated": True,
        "measured, laptop": True,
    }


FITS = """
name: table-2
paper: {table: 2, published: {source: narayanan2021, table: "Table 2"}}
scales:
  paper:
    model: gpt-529.6b
    parallel: {sharding: zero3}
    training: {recompute: full, precision: fp16, microbatch: 4, global_batch: 2560}
    sweep: {zip: {data: [560, 640], global_batch: [2240, 2560]}}
"""


@pytest.mark.parametrize(
    ("fewer", "more", "verdict"),
    [
        ("does not fit", "fits", REPRODUCED),
        ("fits", "fits", NOT_REPRODUCED),
        ("does not fit", "does not fit", NOT_REPRODUCED),
        ("undecided", "fits", UNTESTABLE),
        ("undecided", "undecided", UNTESTABLE),
    ],
)
def test_what_fits_is_decided_beyond_the_memory_models_margin_only(tmp_path, fewer, more, verdict):
    experiment = experiment_of(tmp_path, FITS, "table-2")
    records = [
        record_at(experiment, "paper", point, 400.0, memory=predicted_memory(said))
        for point, said in zip(points_of(experiment, "paper"), (fewer, more), strict=True)
    ]
    found = judged(["T2-07"], {"table-2": experiment}, kept(tmp_path / "runs", *records))["T2-07"]
    assert found.verdict == verdict
    assert found.here["simulated"].text.startswith(f"{fewer} with 90.0 GiB on 560, {more} with 90.0 GiB on 640 GPUs")


def test_the_table_and_the_text_have_every_claim_and_the_count(shipped, figure_12, tmp_path):
    folder = kept(tmp_path / "runs", *simulated_figure_12(figure_12))
    verdicts = judge(list(CLAIMS.values()), Evidence({**shipped, "figure-12": figure_12}, [folder]))
    table = claims_table(verdicts)
    assert [row[0] for row in table.body] == list(CLAIMS)
    by_id = {row[0]: row[3:] for row in table.body}
    assert by_id["F12-01"] == ["5 of 5", "holds: 5 of 5", "–", REPRODUCED, "–"]
    assert by_id["F13-03"][0].endswith("; does not support it")
    assert "F12-01 (5.3.2; Figure 12) reproduced: Interleaved with scatter/gather" in claims_text(verdicts)
    counts = summary(verdicts)
    assert counts.startswith(f"{len(CLAIMS)} claims: ")
    assert f"{sum(one.verdict == REPRODUCED for one in verdicts)} reproduced, 1 not reproduced" in counts
    tested = [one for one in verdicts if one.verdict in (REPRODUCED, NOT_REPRODUCED) and one.supported]
    assert f"Of the {len(tested)} tested ones that the paper's own numbers support, {len(tested)} are" in counts


def test_the_folder_of_the_paper_is_found_by_its_name():
    assert {"table-1", "figure-12", "section-5.8"} <= experiments_in("paper").keys()
    assert experiments_in("quickstart") == experiments_in("..") == experiments_in("") == {}
