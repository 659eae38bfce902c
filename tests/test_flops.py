"""FLOPs by formula against hand counts, the paper's equations and a count of every matrix product; peaks."""

import itertools

import pytest

from suite.experiment.models import MODELS
from suite.experiment.point import Model
from suite.measure.flops import (
    causal_model_flops,
    hardware_flops,
    model_flops,
    padded_vocab,
    paper_flops,
    paper_parameters,
    parameters,
)
from suite.measure.peaks import find_peak

SHAPES = [
    Model(layers=3, hidden_size=24, heads=3, ffn_hidden_size=40, vocab_size=130, seq_length=7),
    Model(layers=1, hidden_size=8, heads=2, vocab_size=50, seq_length=5, tied_embeddings=False),
    Model(layers=2, hidden_size=32, heads=4, vocab_size=1024, seq_length=64),
]
GPT3 = Model.model_validate("gpt-175b")


def products(model, vocab):
    """(rows, inner, columns) of every matrix product of one sequence's forward pass: core, other, logits."""
    s, h, f, heads = model.seq_length, model.hidden_size, model.ffn_hidden_size, model.heads
    core = [(s, h // heads, s), (s, s, h // heads)] * heads
    other = [(s, h, 3 * h), (s, h, h), (s, h, f), (s, f, h)]
    return core * model.layers, other * model.layers, [(s, h, vocab)]


def counted(shapes, batch):
    return batch * sum(2 * rows * inner * columns for rows, inner, columns in shapes)


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_matrix_product_counted(model, recompute, tensor):
    core, other, logits = products(model, padded_vocab(model.vocab_size, tensor))
    again = {"none": [], "selective": core, "full": core + other}[recompute]
    expected = 3 * counted(core + other + logits, 6) + counted(again, 6)
    assert hardware_flops(model, 6, tensor, recompute) == expected


@pytest.mark.parametrize("model", SHAPES)
def test_model_flops_use_the_declared_vocabulary(model):
    core, other, logits = products(model, model.vocab_size)
    assert model_flops(model, 5) == 3 * counted(core + other + logits, 5)
    assert 2 * causal_model_flops(model, 5) == 3 * counted(core + 2 * other + 2 * logits, 5)


def test_hand_count():
    # B=2 s=3 l=1 h=4 f=16 V=10: layers 2*3*(8*16 + 4*4*16 + 4*3*4) = 2592, logits 2*2*3*4*10 = 480
    model = Model(layers=1, hidden_size=4, heads=1, vocab_size=10, seq_length=3)
    assert model_flops(model, 2) == 3 * (2592 + 480)
    assert causal_model_flops(model, 2) == 3 * (2592 - 144 + 480)
    assert hardware_flops(model, 2, 1, "none") == 3 * (2592 + 2 * 2 * 3 * 4 * 128)
    assert parameters(model) == (4 * 16 + 4 * 4) + (2 * 4 * 16 + 16 + 4) + 4 * 4 + 2 * 4 + 13 * 4


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].get("vocab_size") == 51200])
def test_full_recomputation_is_the_papers_equation_3(name):
    model = Model.model_validate(name)
    s, h, vocab, layers = model.seq_length, model.hidden_size, model.vocab_size, model.layers
    equation = 96 * 512 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert padded_vocab(vocab, 8) == vocab
    assert hardware_flops(model, 512, 8, "full") == paper_flops(model, 512)
    assert paper_flops(model, 512) == pytest.approx(equation, rel=1e-12)
    without = 72 * 512 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert hardware_flops(model, 512, 8, "none") == model_flops(model, 512) == pytest.approx(without, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].get("vocab_size") == 51200])
def test_parameters_are_the_papers_equation_2_and_a_layer_norm(name):
    model = Model.model_validate(name)
    h, layers = model.hidden_size, model.layers
    equation = 12 * layers * h**2 * (1 + 13 / (12 * h) + (51200 + 2048) / (12 * layers * h))
    assert paper_parameters(model) == pytest.approx(equation, rel=1e-12)
    assert parameters(model) == paper_parameters(model) + 2 * h
    assert model.name is not None
    size, unit = float(model.name[4:-1]), {"b": 1e9, "t": 1e12}[model.name[-1]]
    assert parameters(model) / unit == pytest.approx(size, rel=0.03)


def test_the_papers_days_to_train():
    # section 5.1: GPT-3 on 300B tokens with 1024 A100 at 140 teraFLOP/s each takes 34 days, by 8TP/(nX),
    # which leaves the smaller terms out
    seconds_by_paper = 8 * 300e9 * 175e9 / (1024 * 140e12)
    assert seconds_by_paper / 86400 == pytest.approx(34, abs=0.5)
    flops_per_token = hardware_flops(GPT3, 1, 8, "full") / GPT3.seq_length
    assert 300e9 * flops_per_token / (1024 * 140e12) / 86400 == pytest.approx(34, abs=0.8)


def test_gpt2_parameters():
    assert parameters(Model.model_validate("gpt2")) == 124_439_808


def test_model_flops_do_not_see_the_layout():
    model = SHAPES[0]
    sizes = itertools.product((1, 2, 4), ("none", "selective", "full"))
    assert len({(model_flops(model, 8), hardware_flops(model, 8, t, r)) for t, r in sizes}) > 1
    assert model_flops(model, 8) == 8 * model_flops(model, 1)
    # an iteration is the sum of its microbatches on all pipelines, however the batch is cut
    for microbatch, data in itertools.product((1, 2, 4), (1, 2)):
        microbatches = 8 // (microbatch * data)
        assert microbatches * data * model_flops(model, microbatch) == model_flops(model, 8)
        executed = microbatches * data * hardware_flops(model, microbatch, 2, "full")
        assert executed == hardware_flops(model, 8, 2, "full")


@pytest.mark.parametrize(
    ("vocab", "tensor", "padded"),
    [(50257, 1, 50304), (50257, 8, 51200), (51200, 8, 51200), (1, 1, 128), (129, 2, 256), (257, 2, 512)],
)
def test_padded_vocabulary(vocab, tensor, padded):
    assert padded_vocab(vocab, tensor) == padded


@pytest.mark.parametrize(
    ("device", "precision", "rate"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "fp16", 312e12),
        ("A100-PCIE-40GB", "fp32", 19.5e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "bf16", 989.4e12),
        ("Tesla V100-SXM2-32GB", "fp16", 125e12),
        ("Tesla V100-PCIE-16GB", "fp16", 112e12),
    ],
)
def test_peaks_are_dense_and_have_a_source(device, precision, rate):
    peak, reason = find_peak(device, precision)
    assert reason is None
    assert peak is not None
    assert (peak.flops_per_device, peak.precision, peak.dense) == (rate, precision, True)
    assert "NVIDIA" in peak.source
    assert "dense" in peak.source


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("NVIDIA GeForce RTX 4090", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"),
        ("NVIDIA A1000", "bf16"),
        ("NVIDIA H100 NVL", "bf16"),
        ("NVIDIA H20", "bf16"),
        ("AMD EPYC 9654", "fp32"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("NVIDIA B200", "fp64"),
        ("NVIDIA H100 80GB HBM3", "fp8"),
        ("", "fp32"),
    ],
)
def test_an_unknown_peak_is_none_with_the_reason(device, precision):
    peak, reason = find_peak(device, precision)
    assert peak is None
    assert reason is not None
    assert f"'{device}'" in reason
