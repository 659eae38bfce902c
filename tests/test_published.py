"""Published numbers: every file is readable, and the paper's agree with its own equations; a broken file is refused."""

import csv
from collections import Counter

import pytest

from suite.experiment.point import Model
from suite.measure.flops import paper_flops, paper_parameters
from suite.records.published import NOT_ROWS, BadRowsError, published, published_files, read_rows
from suite.resources import resource_dir

PEAK = 312.0  # TFLOP/s, A100
TOKENS = 300e9


@pytest.fixture(scope="module")
def paper():
    return published("narayanan2021")


def _model(row) -> Model:
    return Model(
        layers=row.layers,
        hidden_size=row.hidden,
        heads=row.heads,
        vocab_size=row.vocab,
        seq_length=row.seq,
        dropout=0.0,
    )


def _of(rows, table, metric):
    found = [row for row in rows if row.table == table and row.metric == metric]
    assert found
    return found


def _by(rows, *names):
    return {tuple(getattr(row, name) for name in names): row.value for row in rows}


def test_every_file_is_readable():
    shipped = {file.stem for file in resource_dir("published").glob("*.csv")}
    assert shipped - published_files().keys() == {"claims", "calibration_a100_allreduce"}
    for name in published_files():
        rows = published(name)
        assert rows, name
        assert all(row.table and row.unit and row.provenance in ("table", "text", "plot") for row in rows), name


def test_no_configuration_has_a_metric_twice():
    """Apart from what the README says of three files."""
    for name in published_files():
        rows = published(name)
        seen = Counter(
            (row.source, row.table, row.config_id, row.schedule, row.metric)
            for row in rows
            if not (row.notes or "").endswith("repeat measurement")
        )
        assert [key for key, count in seen.items() if count > 1] == [], name


def test_sizes_multiply_to_the_gpus(paper):
    sized = [row for row in paper if None not in (row.tp, row.pp, row.dp, row.n_gpus)]
    assert len(sized) > 100
    for row in sized:
        assert row.tp * row.pp * row.dp == row.n_gpus, row
        if row.microbatch and row.global_batch:
            assert row.global_batch % (row.dp * row.microbatch) == 0, row
        if row.layers:
            assert row.layers % (row.pp * (row.vpp or 1)) == 0, row


def test_equation_2_gives_the_parameters(paper):
    tables = [row for row in paper if row.table in ("Table 1", "Table 2") and row.metric == "tflops_per_gpu"]
    assert len({row.model for row in tables}) == 11
    for row in tables:
        assert paper_parameters(_model(row)) / 1e9 == pytest.approx(row.params_b, abs=0.05), row


def test_totals_percentages_and_equation_3_close_on_table_1(paper):
    totals = _by(_of(paper, "Table 1", "petaflops"), "config_id")
    percents = _by(_of(paper, "Table 1", "hfu"), "config_id")
    rates = _of(paper, "Table 1", "tflops_per_gpu")
    assert len(rates) == len(totals) == len(percents) == 10
    seconds = {}
    for row in rates:
        total = totals[(row.config_id,)] * 1e3  # TFLOP/s, rounded to 100
        assert total == pytest.approx(row.value * row.n_gpus, abs=0.5 * row.n_gpus + 50), row
        assert row.value / PEAK == pytest.approx(percents[(row.config_id,)] / 100, abs=0.005 + 0.5 / PEAK), row
        seconds[row.model] = paper_flops(_model(row), row.global_batch) / (total * 1e12)
    assert seconds["GPT-1.7B"] == pytest.approx(3.52, abs=0.01)
    assert seconds["GPT-1T"] == pytest.approx(102.37, abs=0.01)


def test_equation_4_gives_the_days_of_the_text(paper):
    (big,) = _of(paper, "Table 1", "days_450b_tokens")
    (rate,) = [row for row in _of(paper, "Table 1", "tflops_per_gpu") if row.config_id == big.config_id]
    days = 8 * 450e9 * rate.params_b * 1e9 / (rate.n_gpus * rate.value * 1e12) / 86400
    assert days == pytest.approx(big.value, abs=0.5)
    (gpt3,) = _of(paper, "Section 5.1", "days_300b_tokens")
    (rate,) = _of(paper, "Section 5.1", "tflops_per_gpu")
    days = 8 * TOKENS * 175e9 / (rate.n_gpus * rate.value * 1e12) / 86400
    assert days == pytest.approx(gpt3.value, abs=0.5)


def test_equation_3_gives_the_days_of_table_2(paper):
    days = _by(_of(paper, "Table 2", "days_300b_tokens"), "config_id")
    rates = _of(paper, "Table 2", "tflops_per_gpu")
    assert len(rates) == len(days) == 12
    misses = 0
    for row in rates:
        per_iteration = paper_flops(_model(row), row.global_batch)
        iterations = TOKENS / (row.global_batch * row.seq)

        def by_rate(rate, row=row, work=iterations * per_iteration):
            return work / (row.n_gpus * rate * 1e12) / 86400

        assert by_rate(row.value + 0.5) - 0.5 <= days[(row.config_id,)] <= by_rate(row.value - 0.5) + 0.5, row
        short = 8 * TOKENS * row.params_b * 1e9 / (row.n_gpus * row.value * 1e12) / 86400
        misses += abs(short - days[(row.config_id,)]) > 0.5
    assert misses > 6, "equation 4 is not the one"


def test_the_bubble_of_figure_6_is_its_formula(paper):
    rows = _of(paper, "Figure 6", "bubble_over_ideal")
    assert len(rows) == 26
    for row in rows:
        n, batches = row.n_gpus, row.global_batch // row.microbatch
        assert (n - row.dp) / batches == pytest.approx(row.value, abs=0.005 + 1e-9), row


def test_figure_8_is_equation_1_on_figure_7(paper):
    rates = {row.microbatch: row.value for row in _of(paper, "Figure 7", "tflops_per_gpu")}
    rows = _of(paper, "Figure 8", "normalized_throughput")
    assert len(rows) == 10

    def throughput(batch, microbatch, stages):
        return batch / ((batch / microbatch + stages - 1) * microbatch / rates[microbatch])

    for row in rows:
        estimate = throughput(row.global_batch, row.microbatch, row.pp) / throughput(row.global_batch, 1, row.pp)
        assert estimate == pytest.approx(row.value, abs=0.0105), row


def test_figure_18_with_scatter_gather_is_figure_12_interleaved(paper):
    names = ("layers", "tp", "pp", "dp", "vpp", "microbatch", "global_batch", "scatter_gather", "x")
    both = [
        _by([row for row in paper if row.table == table and row.series == series], *names)
        for table, series in (("Figure 12", "interleaved"), ("Figure 18", "with scatter/gather"))
    ]
    assert len(both[0]) == 5
    assert both[0] == both[1]


def test_every_model_of_the_paper_is_in_the_zoo(paper):
    shapes = {row.model: _model(row) for row in paper if row.model and row.layers}
    assert len(shapes) == 19
    for name, shape in shapes.items():
        assert Model(name=name.lower()).model_copy(update={"name": None, "dropout": 0.0}) == shape, name


def test_claims_are_whole():
    with (resource_dir("published") / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert len([i for i in ids if i.startswith("IN-")]) == 10
    assert {row["kind"] for row in rows} == {"quantity", "direction", "inconsistency"}
    assert all(row["claim"] and row["check"] and row["where"] and row["supported_by_paper"] for row in rows)


GOOD = "source,layers,tp,metric,value,unit,mine\nus,24,8,iteration_time,1500,ms,red\n"


def test_a_users_own_file(tmp_path):
    file = tmp_path / "ours.csv"
    file.write_text("\ufeff" + GOOD + "\nus,24.0,,tflops_per_gpu,140.5,TFLOP/s,\n", encoding="utf-8")
    first, second = read_rows(file)
    assert (first.layers, first.tp, first.hidden, first.iteration_seconds) == (24, 8, None, 1.5)
    assert (second.line, second.layers, second.tp, second.value) == (4, 24, None, 140.5)
    file.write_text("metric,value,unit\ntflops_per_gpu,140,TFLOP/s\n")
    assert read_rows(file)[0].source == "ours"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ":1: it is empty; a first line such as source,"),
        ("source,value,unit\nus,3,s\n", ":1: the column metric must be there; a first line such as source,"),
        ("value\n", ":1: the columns metric, unit must be there"),
        (GOOD.replace("tp", "layers"), ":1: column layers: it is there 2 times; once would work"),
        (GOOD.replace("24", "many"), ":2: column layers: got 'many'; it must be a whole number of at least 1; 8 would"),
        (GOOD.replace("24", "2.5"), ":2: column layers: got '2.5'; it must be a whole number"),
        (GOOD.replace("24", "0"), ":2: column layers: got '0'; it must be a whole number of at least 1"),
        (GOOD.replace("1500", "nan"), ":2: column value: got 'nan'; it must be a finite number of at least 0; 163.5"),
        (GOOD.replace("1500", ""), ":2: column value: it is empty; it must be a finite number"),
        (GOOD.replace("ms", "min"), ":2: column unit: got 'min'; an iteration_time is in s or ms; s would work"),
        (GOOD.replace(",ms", ""), ":2: it has 6 cells; it must have the header's 7"),
        (GOOD.replace("mine", "fused"), ":2: column fused: got 'red'; it must be yes or no; no would work"),
        (GOOD.replace("mine", "zero_stage"), ":2: column zero_stage: got 'red'; it must be 0, 1, 2 or 3"),
        (GOOD.replace("mine", "reduction"), ":2: column reduction: got 'red'; it must be overlapped or after; after"),
    ],
)
def test_a_broken_file_is_refused_with_the_place_and_what_would_work(tmp_path, text, sentence):
    file = tmp_path / "ours.csv"
    file.write_text(text)
    with pytest.raises(BadRowsError) as refused:
        read_rows(file)
    assert len(refused.value.problems) == 1
    assert str(refused.value).startswith(f"{file}{sentence}")


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    file = tmp_path / "ours.csv"
    file.write_text(GOOD.replace("24", "-1").replace("1500", "fast"))
    with pytest.raises(BadRowsError) as refused:
        read_rows(file)
    assert len(refused.value.problems) == 2
    file.write_bytes(b"metric,value,unit\n\xff,1,s\n")
    with pytest.raises(BadRowsError, match="it is not UTF-8 text; a CSV file saved as UTF-8 would work"):
        read_rows(file)


def test_files_with_other_columns_are_no_rows():
    names = {file.stem for file in resource_dir("published").glob("*.csv")}
    assert {name for name in names if name.startswith(NOT_ROWS)} == names - published_files().keys()
