"""The rules of a point: what is refused, in which words, and that what is proposed would work."""

import re

import pytest

from suite.experiment.cluster import Cluster
from suite.experiment.fields import FIELDS
from suite.experiment.point import Point
from suite.experiment.validity import nearest_divisor, violations
from suite.pipeline.program import MOST_ACTIONS

LOCAL = Cluster(name="local", max_ranks=16)


def _point(**sections) -> Point:
    model = {"layers": 8, "hidden_size": 64, "heads": 8, "vocab_size": 256, "seq_length": 32}
    return Point.model_validate(
        {
            **sections,
            "model": {**model, **sections.get("model", {})},
            "training": {"global_batch": 16, **sections.get("training", {})},
        }
    )


def test_a_valid_point_breaks_nothing():
    assert violations(_point(parallel={"tensor": 2, "pipeline": 4, "data": 2}), LOCAL) == []


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"model": {"heads": 7}},
            "model.hidden_size=64: it is not a multiple of model.heads=7; model.heads=8 would work",
        ),
        (
            {"parallel": {"tensor": 3}, "model": {"ffn_hidden_size": 96}},
            "parallel.tensor=3: it does not divide model.heads=8; parallel.tensor=2 would work",
        ),
        (
            {"parallel": {"tensor": 4}, "model": {"ffn_hidden_size": 102}},
            "parallel.tensor=4: it does not divide model.ffn_hidden_size=102; parallel.tensor=3 would work",
        ),
        (
            {"parallel": {"pipeline": 8}, "model": {"layers": 7}},
            "model.layers=7: fewer than one layer for each of the 8 virtual stages (pipeline 8 * chunks 1); "
            "model.layers=8 would work",
        ),
        (
            {"parallel": {"data": 3}, "training": {"microbatch": 2}},
            "training.global_batch=16: it is not a multiple of data 3 * microbatch 2 = 6; "
            "training.global_batch=18 would work",
        ),
        (
            {"parallel": {"data": 8}, "training": {"microbatch": 4, "global_batch": 3}},
            "training.global_batch=3: it is not a multiple of data 8 * microbatch 4 = 32; "
            "training.global_batch=32 would work",
        ),
        (
            {"parallel": {"tensor": 4, "pipeline": 2, "data": 4}},
            "parallel.data=4: tensor 4 * pipeline 2 * data 4 is 32 ranks, more than the 16 of cluster local; "
            "parallel.data=2 would work",
        ),
        (
            {"parallel": {"tensor": 8, "pipeline": 8}},
            "parallel.data=1: tensor 8 * pipeline 8 * data 1 is 64 ranks, more than the 16 of cluster local; "
            "tensor * pipeline of at most 16 would work",
        ),
        (
            {"training": {"global_batch": 10**9}, "parallel": {"pipeline": 3}},
            "1f1b of 3 stages with 1 chunks each and 1000000000 microbatches has 6000000000 actions, more than the "
            "2000000 of the largest schedule; 333330 microbatches would work",
        ),
        (
            {"schedule": {"name": "interleaved", "chunks": 10**9}},
            "model.layers=8: fewer than one layer for each of the 1000000000 virtual stages (pipeline 1 * chunks "
            "1000000000); pipeline * chunks of at most 8 would work",
        ),
        (
            {"parallel": {"pipeline": 3}, "schedule": {"split": [4, 4]}},
            "schedule.split=[4, 4]: it must have 3 entries, one per virtual stage, that sum to 8 layers, "
            "and it has "
            "2 that sum to 8; schedule.split=[3, 3, 2] would work",
        ),
        (
            {"parallel": {"pipeline": 2}, "schedule": {"split": [4, 5]}},
            "schedule.split=[4, 5]: it must have 2 entries, one per virtual stage, that sum to 8 layers, "
            "and it has "
            "2 that sum to 9; schedule.split=[4, 4] would work",
        ),
        (
            {"parallel": {"pipeline": 2}, "schedule": {"split": [4.5, 4]}},
            "schedule.split=[4.5, 4]: it must have 2 entries, one per virtual stage, that sum to 8 layers, "
            "and it has 2 that sum to 8.5; schedule.split=[4, 4] would work",
        ),
        (
            {"schedule": {"cap": 2}},
            "schedule.cap=2: 1f1b has no limit to choose on the microbatches in flight; leave schedule.cap out, or use "
            "schedule=list",
        ),
        (
            {"schedule": {"name": "file", "file": "x.csv"}},
            "schedule.file=x.csv: there is no such file",
        ),
        (
            {"schedule": "file"},
            "schedule.file=null: the schedule is read from a file; schedule.file=PATH, of torch's CSV, would work",
        ),
        (
            {"parallel": {"order": ["tensor", "data", "data"]}},
            "parallel.order=['tensor', 'data', 'data']: it must name each dimension once; "
            "parallel.order=[tensor, data, pipeline] would work",
        ),
        (
            {"data": {"source": "text"}, "model": {"vocab_size": 255}},
            "model.vocab_size=255: data.source=text reads bytes, which have 256 values; "
            "model.vocab_size=256 would work",
        ),
        (
            {"data": {"source": "megatron"}},
            "data.path=null: data.source=megatron reads a .bin and an .idx file; data.path=NAME, with the files "
            "NAME.bin and NAME.idx, would work",
        ),
        (
            {"data": {"source": "megatron", "path": "missing/corpus"}},
            "data.path=missing/corpus: there is no file missing/corpus.idx; the two files corpus.bin and "
            "corpus.idx, as Megatron writes them, would work",
        ),
        (
            {"data": {"source": "megatron", "path": "x"}, "training": {"seed": 2**32 + 7}},
            "training.seed=4294967303: Megatron's shuffling takes seeds up to 4294967295; training.seed=7 would work",
        ),
        (
            {"data": {"tokenizer": "tokenizer.json"}},
            "data.tokenizer=tokenizer.json: data.source=synthetic is not text; data.tokenizer=null would work",
        ),
        (
            {"kernels": {"atention": "torch"}},
            "kernels={atention: 'torch'}: 'atention' is no operator; nearest: attention",
        ),
    ],
)
def test_a_rule_is_said_with_the_value_and_what_would_work(sections, sentence):
    assert violations(_point(**sections), LOCAL) == [sentence]


@pytest.mark.parametrize("field", ["path", "validation"])
def test_a_text_that_is_missing_or_empty_is_said_by_the_field_that_names_it(tmp_path, monkeypatch, field):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_text("a text of more than thirty-two bytes")
    (tmp_path / "empty").touch()
    data = {"source": "text", "path": "good", "validation": "good"}
    assert violations(_point(data=data), LOCAL) == []
    (missing,) = violations(_point(data={**data, field: "missing"}), LOCAL)
    assert missing.startswith(f"data.{field}=missing: neither a file nor")
    (empty,) = violations(_point(data={**data, field: "empty"}), LOCAL)
    assert empty.startswith(f"data.{field}: the text has 0 bytes, model.seq_length=32 needs more than that; ")
    assert empty.endswith("; a longer text would work")


def test_held_out_megatron_data_are_checked_too():
    found = violations(_point(data={"source": "megatron", "path": "corpus", "validation": "held"}), LOCAL)
    assert [sentence.split(":")[0] for sentence in found] == ["data.path=corpus", "data.validation=held"]


def test_a_text_of_one_byte_has_no_sequence_length_that_would_work(tmp_path):
    (tmp_path / "one").write_text("x")
    (sentence,) = violations(_point(data={"source": "text", "path": str(tmp_path / "one")}), LOCAL)
    assert sentence.endswith("a longer text would work")


@pytest.mark.parametrize("layers", [8, 9, 11, 15])
def test_layers_that_do_not_divide_are_fine(layers):
    assert violations(_point(model={"layers": layers}, parallel={"pipeline": 8}), LOCAL) == []


def test_the_schedule_is_asked_with_its_sizes(monkeypatch):
    asked = []

    def why_not(section, stages, microbatches):
        asked.append((section.name, stages, microbatches))
        return "no"

    monkeypatch.setattr("suite.pipeline.generators.why_not", why_not)
    point = _point(parallel={"pipeline": 4, "data": 2}, training={"microbatch": 2})
    assert violations(point, LOCAL) == ["no"]
    assert asked == [("1f1b", 4, 4)]
    asked.clear()
    assert len(violations(_point(parallel={"data": 3}), LOCAL)) == 1
    assert asked == []  # it has no number of microbatches to ask with


def test_the_longest_schedule_is_the_one_that_is_proposed():
    sections = {"parallel": {"pipeline": 4, "data": 2}, "schedule": {"name": "interleaved", "chunks": 2}}
    (sentence,) = violations(_point(**sections, training={"global_batch": 10**9}), LOCAL)
    batch = 2 * int(re.fullmatch(r".*; (\d+) microbatches would work", sentence)[1])
    assert violations(_point(**sections, training={"global_batch": batch}), LOCAL) == []
    assert len(violations(_point(**sections, training={"global_batch": batch + 16}), LOCAL)) == 1


@pytest.mark.parametrize(
    ("section", "field", "most"),
    [
        ("model", "layers", MOST_ACTIONS // 2),
        ("model", "vocab_size", 10**9),
        ("training", "seed", 10**12),
        ("training", "loss_scale", 2**32),
        ("measure", "stall_seconds", 10_000_000),
    ],
)
def test_sizes_have_an_end(section, field, most):
    _point(**{section: {field: most}})
    with pytest.raises(ValueError, match=field):
        _point(**{section: {field: most + 1}})
    assert f"up to {most}; nearest: {most}" in FIELDS[f"{section}.{field}"].complaint(10 * most)


def test_sequence_parallelism_needs_a_sequence_that_divides():
    (sentence,) = violations(_point(model={"seq_length": 30}, parallel={"tensor": 4, "sequence": True}), LOCAL)
    assert "model.seq_length=32 would work" in sentence
    assert violations(_point(model={"seq_length": 30}, parallel={"tensor": 2, "sequence": True}), LOCAL) == []


def test_schedule_rules_reach_the_point():
    (sentence,) = violations(_point(schedule={"name": "gpipe", "chunks": 2}, parallel={"pipeline": 2}), LOCAL)
    assert "chunks" in sentence


@pytest.mark.parametrize(
    "sections",
    [
        {"checkpoint": {"every": 2}, "parallel": {"sharding": "zero3", "data": 2}},
        {"schedule": {"name": "zb-h1"}, "parallel": {"sharding": "zero3", "data": 2}},
    ],
)
def test_what_cannot_run_yet_is_said_in_one_sentence_with_a_value_that_can(sections):
    (sentence,) = violations(_point(**sections), LOCAL)
    found = re.fullmatch(r"(\S+)=\S+: this version cannot run it yet(?: with \S+)?; (\S+)=(\S+) would work", sentence)
    assert found
    assert found[1] == found[2]
    section, _, field = found[2].partition(".")
    value = {"false": False, "null": None, "0": 0}.get(found[3], found[3])
    works = {**sections, section: {**sections[section], field: value} if field else value}
    assert violations(_point(**works), LOCAL) == []


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"precision": "fp64"}},
        {"training": {"precision": "bf16"}},
        {"training": {"precision": "fp16", "loss_scale": 8192}},
        {"parallel": {"sharding": "zero1", "data": 2}},
        {"kernels": "reference"},
        {"kernels": {"attention": "auto"}},
        {"parallel": {"sequence": True, "tensor": 2}},
        {"parallel": {"scatter_gather": True, "tensor": 2}},
        {"training": {"recompute": "selective"}},
        {"training": {"recompute": "full", "recompute_layers": 2}},
        {"schedule": "zb-h1"},
        {"schedule": "chimera", "parallel": {"pipeline": 2}},
        {"schedule": {"name": "readiness", "cap": 2}},
    ],
)
def test_what_can_run(sections):
    assert violations(_point(**sections), LOCAL) == []


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        ("triton", "kernels='triton': triton.*; kernels=auto would work"),
        ({"attention": "apex", "layer_norm": "torch"}, "kernels=.*: apex.*NVIDIA.*; kernels=auto would work"),
        ({"bias_gelu": "apex"}, "kernels.bias_gelu=apex: bias_gelu has reference, torch, triton; .*=auto would work"),
    ],
)
def test_operators_that_are_not_there_are_said_before_a_launch_and_may_be_simulated(kernels, said, monkeypatch):
    monkeypatch.setattr("suite.kernels.registry._installed", lambda name: False)
    (sentence,) = violations(_point(kernels=kernels), LOCAL)
    assert re.fullmatch(said, sentence)
    assert violations(_point(kernels="auto"), LOCAL) == []
    exists = "bias_gelu" not in kernels
    assert (violations(_point(kernels=kernels), LOCAL, "simulated") == []) is exists


def test_what_apexs_softmax_cannot_take_is_said(monkeypatch):
    monkeypatch.setattr("suite.kernels.registry._installed", lambda name: True)
    on_gpus = LOCAL.model_copy(update={"device": "cuda"})
    wrong = _point(kernels="apex", model={"seq_length": 2050, "heads": 1}, training={"precision": "fp32"})
    assert len(violations(wrong, on_gpus)) == 4
    fits = _point(kernels="apex", model={"seq_length": 2048, "heads": 4}, training={"precision": "bf16"})
    assert violations(fits, on_gpus) == []


def test_every_violation_is_said():
    point = _point(model={"heads": 7, "layers": 1}, parallel={"tensor": 3, "pipeline": 8, "data": 3, "sequence": True})
    assert len(violations(point, LOCAL)) == 7


@pytest.mark.parametrize(
    ("number", "wanted", "nearest"), [(8, 3, 2), (12, 5, 4), (7, 5, 7), (7, 3, 1), (6, 100, 6), (8, 4, 4)]
)
def test_the_nearest_divisor(number, wanted, nearest):
    assert nearest_divisor(number, wanted) == nearest
