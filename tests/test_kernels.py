"""Every operator's implementations against its reference, forward and backward, and the choice among them.

The references are computed in fp64 on the inputs as the implementation gets them. Triton's kernels run in its
interpreter; that they compile for GPUs is `test_kernels_compiled`'s.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined, so before any is imported

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import point, training_step

from suite.kernels.adamw import Hyperparameters
from suite.kernels.dropout_mask import DropoutMask
from suite.kernels.parity import LIMIT, ROUNDOFF, roundings
from suite.kernels.registry import OPERATORS, choose, implementation, problem, select

HERE = ("torch", *(("triton",) if find_spec("triton") else ()))
DTYPE = st.sampled_from(list(ROUNDOFF))
ROWS, BATCH, WIDTH = st.integers(1, 5), st.integers(1, 3), st.integers(1, 37)
FEW = settings(max_examples=10, deadline=None)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_same(operator: str, dtype: torch.dtype, inputs: list[torch.Tensor], *constants: Any) -> None:
    """Outputs and the gradients of all inputs are those of the reference to a few roundings."""
    for name in HERE:
        assert roundings(operator, name, dtype, inputs, constants) < LIMIT, name


def masks(blocks: int, rate: float = 0.3, first: int = 0) -> DropoutMask:
    return DropoutMask(torch.randint(-(2**31), 2**31, (blocks, 2), dtype=torch.int32), rate, first)


@FEW
@given(rows=ROWS, batch=BATCH, width=st.integers(2, 37), scale=st.floats(0.1, 100), dtype=DTYPE)
def test_layer_norm_is_its_reference(rows, batch, width, scale, dtype):
    assert_same("layer_norm", dtype, [random(rows, batch, width) * scale, random(width), random(width)], 1e-5)


@FEW
@given(rows=ROWS, batch=BATCH, width=st.integers(2, 37), dtype=DTYPE)
def test_residual_layer_norm_is_its_reference(rows, batch, width, dtype):
    x, residual = random(rows, batch, width), random(rows, batch, width)
    if dtype == torch.bfloat16:  # the sum is rounded before the norm; a reference in fp64 does not do that
        x, residual = x.round(), residual.round()
    assert_same("residual_layer_norm", dtype, [x, residual, random(width), random(width)], 1e-1)


def test_layer_norm_reference_has_mean_and_variance_of_the_biased_kind():
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    y = implementation("layer_norm", "reference")(x, torch.full((4,), 2.0), torch.full((4,), 5.0), 0.0)
    torch.testing.assert_close(y, 5 + 2 * (x - 3) / 3.5**0.5)


@FEW
@given(rows=ROWS, batch=BATCH, width=WIDTH, scale=st.floats(0.1, 20), dtype=DTYPE)
def test_bias_gelu_is_its_reference(rows, batch, width, scale, dtype):
    assert_same("bias_gelu", dtype, [random(rows, batch, width) * scale, random(width)])


def test_bias_gelu_reference_is_close_to_the_exact_gelu():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    y = implementation("bias_gelu", "reference")(x - 0.25, torch.full((101,), 0.25, dtype=torch.float64))
    torch.testing.assert_close(y, torch.nn.functional.gelu(x), rtol=0, atol=1e-3)


@FEW
@given(
    rows=ROWS, batch=BATCH, width=WIDTH, rate=st.sampled_from([0.0, 0.1, 0.7]), first=st.integers(0, 99), dtype=DTYPE
)
def test_bias_dropout_add_is_its_reference(rows, batch, width, rate, first, dtype):
    mask = masks(batch, rate, first) if rate else None
    assert_same(
        "bias_dropout_add", dtype, [random(rows, batch, width), random(width), random(rows, batch, width)], mask
    )


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_its_share_the_same_in_every_run_and_another_under_another_key(name, rate):
    zero, one = torch.zeros(16, 2, 512), torch.ones(16, 2, 512)
    kernel, mask = implementation("bias_dropout_add", name), masks(2, rate)
    y = kernel(one, torch.zeros(512), zero, mask)
    assert torch.equal(y, kernel(one, torch.zeros(512), zero, mask))
    sigma = (rate * (1 - rate) / y.numel()) ** 0.5
    assert (y != 0).double().mean().item() == pytest.approx(1 - rate, abs=4 * sigma)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rate)))
    other = kernel(one, torch.zeros(512), zero, masks(2, rate))
    assert ((y != 0) == (other != 0)).double().mean().item() == pytest.approx(rate**2 + (1 - rate) ** 2, abs=0.03)


@FEW
@given(batch=BATCH, heads=st.integers(1, 3), s=st.integers(1, 9), scale=st.sampled_from([1.0, 0.3]), dtype=DTYPE)
def test_causal_softmax_is_its_reference(batch, heads, s, scale, dtype):
    assert_same("causal_softmax", dtype, [random(batch, heads, s, s)], scale)


@FEW
@given(batch=BATCH, heads=st.integers(1, 3), s=st.integers(1, 5), t=WIDTH, dtype=DTYPE, seed=st.integers(0, 99))
def test_masked_softmax_is_its_reference(batch, heads, s, t, dtype, seed):
    hidden = torch.rand(batch, 1, s, t, generator=torch.Generator().manual_seed(seed)) < 0.5
    hidden[..., 0] = False
    assert_same("masked_softmax", dtype, [random(batch, heads, s, t)], hidden, 0.7)


@FEW
@given(batch=BATCH, heads=st.integers(1, 3), s=st.integers(1, 9), d=st.integers(1, 9), drop=st.booleans(), dtype=DTYPE)
def test_attention_is_its_reference(batch, heads, s, d, drop, dtype):
    mask = masks(batch * heads) if drop else None
    assert_same("attention", dtype, [random(batch, heads, s, d) for _ in range(3)], mask)


@pytest.mark.parametrize("drop", [False, True])
def test_attention_takes_sequence_first_views_and_copies_none(drop):
    s, b, heads, d = 8, 2, 3, 4
    qkv = torch.randn(s, b, heads, 3, d)
    q, k, v = qkv.permute(3, 1, 2, 0, 4)
    assert q.flatten(0, 1).data_ptr() == q.data_ptr()
    assert k.flatten(0, 1).data_ptr() == k.data_ptr()
    whole = [x.contiguous() for x in (q, k, v)]
    mask = masks(b * heads) if drop else None
    for name in ("reference", *HERE):
        kernel = implementation("attention", name)
        torch.testing.assert_close(kernel(q, k, v, mask), kernel(*whole, mask))


def test_attention_reference_looks_only_back():
    attention = implementation("attention", "reference")
    q, k, v = (random(1, 2, 6, 4) for _ in range(3))
    before = attention(q, k, v, None)
    k[..., 4:, :] += 1.0
    v[..., 4:, :] += 1.0
    after = attention(q, k, v, None)
    assert torch.equal(before[..., :4, :], after[..., :4, :])
    assert not torch.equal(before[..., 4:, :], after[..., 4:, :])
    torch.testing.assert_close(after[..., 0, :], v[..., 0, :])


@FEW
@given(rows=ROWS, batch=BATCH, width=WIDTH, ranks=st.integers(1, 3), padding=st.integers(0, 5), dtype=DTYPE)
def test_cross_entropy_over_a_split_vocabulary_is_torchs_over_the_whole(rows, batch, width, ranks, padding, dtype):
    """The ranks are walked twice: what they would combine is known from the first walk."""
    vocabulary = max(1, width * ranks - padding)
    logits, targets = random(rows, batch, width * ranks).to(dtype), torch.randint(0, vocabulary, (rows, batch))
    whole = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        whole[..., :vocabulary].flatten(0, 1), targets.flatten(), reduction="sum"
    )
    (gradient,) = torch.autograd.grad(expected, whole)
    parts = logits.split(width, dim=-1)
    for name in ("reference", *HERE):
        calls: list[list[torch.Tensor]] = []
        kernel = implementation("cross_entropy", name)

        def walk(combined: list[torch.Tensor], kernel=kernel, calls=calls) -> list[tuple[torch.Tensor, torch.Tensor]]:
            found = []
            for index, part in enumerate(parts):
                seen: list[torch.Tensor] = []
                calls.append(seen)

                def combine(tensor: torch.Tensor, seen=seen) -> torch.Tensor:
                    seen.append(tensor.clone())
                    return combined[len(seen) - 1] if len(seen) <= len(combined) else tensor

                leaf = part.clone().contiguous().requires_grad_()
                real = max(0, min(width, vocabulary - index * width))
                loss = kernel(leaf, targets, index * width, real, combine, combine)
                found.append((loss, torch.autograd.grad(loss, leaf)[0]))
            return found

        combined: list[torch.Tensor] = []
        for reduce in (torch.amax, torch.sum, torch.sum)[: 3 if name == "reference" else 2]:
            calls.clear()
            walk(combined)
            combined.append(reduce(torch.stack([seen[len(combined)] for seen in calls]), dim=0))
        found = walk(combined)
        if ranks == 1:  # and so without anything to combine
            leaf = logits.clone().requires_grad_()
            loss = kernel(leaf, targets, 0, vocabulary)
            found.append((loss, torch.autograd.grad(loss, leaf)[0]))
        for loss, _ in found:
            torch.testing.assert_close(loss.double(), expected, rtol=8 * ROUNDOFF[dtype], atol=1e-5)
        mine = torch.cat([one for _, one in found], dim=-1)
        expected_gradient = torch.cat([gradient] * (len(found) // ranks), dim=-1)
        torch.testing.assert_close(mine.double(), expected_gradient, rtol=0, atol=8 * ROUNDOFF[dtype])


@FEW
@given(count=st.integers(1, 12), tokens=st.integers(1, 5), width=WIDTH, dtype=DTYPE)
def test_embedding_gradient_is_its_reference(count, tokens, width, dtype):
    main, rows = random(tokens, width).to(torch.promote_types(dtype, torch.float32)), random(count, 1, width).to(dtype)
    assert_same("embedding_gradient", main.dtype, [], main, torch.randint(0, tokens, (count, 1)), rows)


@FEW
@given(rows=ROWS, batch=BATCH, inputs=WIDTH, outputs=WIDTH, dtype=DTYPE)
def test_weight_gradient_is_its_reference_and_adds_in_at_least_32_bits(rows, batch, inputs, outputs, dtype):
    main = torch.full((outputs, inputs), 100.0, dtype=torch.promote_types(dtype, torch.float32))
    x, grad = random(rows, batch, inputs).to(dtype), random(rows, batch, outputs).to(dtype)
    assert roundings("weight_gradient", "torch", main.dtype, [], [main, x, grad]) < LIMIT


@FEW
@given(sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=3), dtype=DTYPE, factor=st.floats(1e-3, 10))
def test_gradient_norm_and_unscale_are_their_references(sizes, dtype, factor):
    tensors = [random(size).to(dtype) for size in sizes]
    expected = implementation("gradient_norm", "reference")([tensor.double() for tensor in tensors])
    for name in HERE:
        found = implementation("gradient_norm", name)(tensors)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(expected.item(), rel=4 * ROUNDOFF[dtype])
        scaled = [tensor.clone() for tensor in tensors]
        implementation("unscale", name)(scaled, factor)
        for one, tensor in zip(scaled, tensors, strict=True):
            torch.testing.assert_close(one.double(), tensor.double() * factor, rtol=ROUNDOFF[dtype], atol=1e-6)


@FEW
@given(
    size=st.integers(1, 1500),
    rate=st.floats(1e-5, 0.5),
    decay=st.floats(0, 0.5),
    beta1=st.floats(0, 0.99),
    beta2=st.floats(0.5, 0.9999),
)
def test_adamw_is_its_reference_over_several_steps(size, rate, decay, beta1, beta2):
    constants = Hyperparameters(rate, (beta1, beta2), 1e-8, decay)
    start, gradients = random(size), [random(size) for _ in range(3)]

    def updated(name: str) -> list[torch.Tensor]:
        tensors = [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]
        for step, gradient in enumerate(gradients, 1):
            values, *moments = tensors
            implementation("adamw", name)(values, gradient.clone(), *moments, step, constants)
        return tensors

    expected = updated("reference")
    for name in HERE:
        for mine, theirs in zip(updated(name), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.skipif("triton" not in HERE, reason="triton is in the test extra")
def test_triton_refuses_what_is_not_contiguous_and_says_what_works():
    x = torch.randn(4, 3, 6).transpose(0, 1)
    with pytest.raises(ValueError, match=r"x: strides \(6, 18, 1\) are not contiguous; x.contiguous\(\) would work"):
        implementation("bias_gelu", "triton")(x, torch.randn(6))


def test_on_a_processor_auto_is_torch_and_the_names_are_kept_for_the_record():
    assert choose("auto") == choose({}) == dict.fromkeys(OPERATORS, "torch")
    chosen = select("reference")
    assert chosen.names == dict.fromkeys(OPERATORS, "reference")
    assert chosen.attention is implementation("attention", "reference")
    assert chosen.adamw is implementation("adamw", "reference")


def test_on_a_gpu_auto_takes_what_is_there_and_fused_attention_where_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr("suite.kernels.registry._installed", lambda name: name == "triton")
    plain, dropping = choose("auto", "cuda"), choose("auto", "cuda", dropout=True)
    assert (plain["attention"], dropping["attention"]) == ("torch", "triton")
    assert plain["layer_norm"] == dropping["bias_gelu"] == "triton"
    assert plain["gradient_norm"] == plain["weight_gradient"] == "torch"
    monkeypatch.setattr("suite.kernels.registry._installed", lambda name: name == "apex")
    only_apex = choose("auto", "cuda")
    assert (only_apex["layer_norm"], only_apex["bias_gelu"], only_apex["adamw"]) == ("apex", "torch", "apex")


def test_one_name_for_all_is_taken_where_an_operator_has_it():
    names = choose("apex")
    assert (names["layer_norm"], names["bias_gelu"]) == ("apex", "torch")
    assert choose("triton")["weight_gradient"] == "torch"


def test_operators_can_be_chosen_one_by_one():
    names = choose({"attention": "reference", "adamw": "auto"})
    assert names == {**choose("auto"), "attention": "reference"}
    assert select({"attention": "reference"}).names == names


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"softmax": "torch"}, "there is no operator 'softmax'; there are layer_norm, residual_layer_norm, "),
        ({"attention": "cuda"}, "attention has no 'cuda' implementation; it has reference, torch, triton, apex"),
        ({"bias_gelu": "apex"}, "bias_gelu has no 'apex' implementation; it has reference, torch, triton"),
        ("cuda", "there is no set 'cuda'; there are auto, reference"),
    ],
)
def test_a_choice_that_does_not_exist_is_an_error_that_says_what_does(choice, reason):
    with pytest.raises(ValueError, match=reason):
        select(choice)


def test_what_is_missing_is_an_error_that_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("")  # PyPI's project of that name
    with pytest.raises(ValueError, match=r"apex is not installed; build it from NVIDIA's source.* another project"):
        select("apex", "cuda")
    (tmp_path / "apex" / "multi_tensor_apply").mkdir()
    assert problem("apex", "cuda") is None
    assert problem({"adamw": "apex"}, "cpu") == "apex's kernels run on a GPU, and the ranks compute on the CPU"
    assert problem("auto", "cpu") is None


def test_the_readmes_table_is_what_is_counted():
    from suite.kernels.traffic import table

    readme = (Path(__file__).resolve().parents[1] / "kernels" / "README.md").read_text()
    assert "\n".join(table()) in readme


def test_torchs_fused_operators_move_no_more_bytes_than_their_references():
    from suite.kernels.cases import Sizes, cases
    from suite.kernels.traffic import Counted

    def moved(case: Any, name: str) -> int:
        with Counted() as counted:
            case.back(case.run(implementation(case.operator, name)))
        return counted.bytes

    for case in cases(Sizes(8, 2, 12, 3, 40), torch.float32, torch.device("cpu")):
        assert moved(case, "torch") <= moved(case, "reference"), case.operator


@pytest.mark.parametrize("name", HERE)
def test_the_engine_computes_the_same_with_every_set_dropout_included(name):
    model = {"layers": 1, "hidden_size": 8, "heads": 2, "vocab_size": 30, "seq_length": 4, "dropout": 0.2}
    training = {"optimizer": "adamw", "gradient_clip": 0.5}

    def trained(kernels: str) -> tuple[list[Any], list[torch.Tensor]]:
        at = point(batch=2, microbatch=2, model=model, training=training).model_copy(update={"kernels": kernels})
        step = training_step(at)
        samples = [step.run(number) for number in range(2)]
        assert set(step.kernels.names.values()) <= {kernels, "torch"}
        return [(sample.loss, sample.grad_norm) for sample in samples], [p.detach() for p in step.parameters()]

    (expected, weights), (found, mine) = trained("reference"), trained(name)
    assert found == [pytest.approx(pair, rel=1e-10) for pair in expected]
    assert expected[0][1] > 0.5, "nothing was clipped"
    for one, other in zip(mine, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
