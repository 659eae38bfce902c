"""The model against transformers' GPT-2 with the same weights: logits and all gradients."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from layouts import point, training_step

from suite.model.dropout import Dropout
from suite.model.gpt import Microbatch

SHAPES = {
    "padded vocabulary": {"layers": 2, "hidden_size": 24, "heads": 3, "vocab_size": 67, "seq_length": 10},
    "ffn other than 4h": {
        "layers": 3,
        "hidden_size": 16,
        "heads": 2,
        "ffn_hidden_size": 40,
        "vocab_size": 130,
        "seq_length": 7,
    },
    "untied": {
        "layers": 1,
        "hidden_size": 16,
        "heads": 4,
        "vocab_size": 128,
        "seq_length": 9,
        "tied_embeddings": False,
    },
}
BATCH = 3


@pytest.fixture(scope="module")
def gpt2():
    """Builds transformers' GPT-2 of a shape."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def build(model, dtype):
        config = GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.seq_length,
            n_embd=model.hidden_size,
            n_layer=model.layers,
            n_head=model.heads,
            n_inner=model.ffn_hidden_size,
            tie_word_embeddings=model.tied_embeddings,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        config._attn_implementation = "eager"
        return GPT2LMHeadModel(config).to(dtype)

    return build


def as_gpt2(ours, model):
    """Our tensors by name as GPT-2's: q, k, v apart and then by head, linear weights transposed, no padding."""
    heads, size, h = model.heads, model.hidden_size // model.heads, model.hidden_size

    def apart(qkv):
        return qkv.view(heads, 3, size, -1).transpose(0, 1).reshape(3 * h, -1)

    theirs = {
        "transformer.wte.weight": ours["embedding.word.weight"][: model.vocab_size],
        "transformer.wpe.weight": ours["embedding.position.weight"],
        "transformer.ln_f.weight": ours["final_norm.weight"],
        "transformer.ln_f.bias": ours["final_norm.bias"],
    }
    for layer in range(model.layers):
        here, there = f"layers.{layer}", f"transformer.h.{layer}"
        for norm, ln in (("norm1", "ln_1"), ("norm2", "ln_2")):
            for what in ("weight", "bias"):
                theirs[f"{there}.{ln}.{what}"] = ours[f"{here}.{norm}.{what}"]
        theirs[f"{there}.attn.c_attn.weight"] = apart(ours[f"{here}.attention.qkv.weight"]).t()
        theirs[f"{there}.attn.c_attn.bias"] = apart(ours[f"{here}.attention.qkv.bias"]).flatten()
        for linear, conv in (
            ("attention.output", "attn.c_proj"),
            ("mlp.expand", "mlp.c_fc"),
            ("mlp.contract", "mlp.c_proj"),
        ):
            theirs[f"{there}.{conv}.weight"] = ours[f"{here}.{linear}.weight"].t()
            theirs[f"{there}.{conv}.bias"] = ours[f"{here}.{linear}.bias"]
    if not model.tied_embeddings:
        theirs["lm_head.weight"] = ours["head.weight"][: model.vocab_size]
    return theirs


def randomised(step):
    """Give every parameter random values, biases and norms too, padded vocabulary rows none."""
    generator = torch.Generator().manual_seed(3)
    for parameter in step.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.2
        if parameter.spec.padded:
            values[parameter.spec.shape[0] :] = 0.0
        parameter.data.copy_(values + (1.0 if parameter.spec.fill else 0.0))


@pytest.mark.parametrize("kernels", ["torch", "reference"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp64", 1e-9)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_and_all_gradients_are_those_of_gpt2(gpt2, shape, precision, tolerance, kernels):
    at = point(batch=BATCH, microbatch=BATCH, model={**shape, "dropout": 0.0}, training={"precision": precision})
    at = at.model_copy(update={"kernels": kernels})
    model = at.model
    step = training_step(at)
    randomised(step)
    (stage,) = step.stages.values()
    tokens = torch.randint(model.vocab_size, (model.seq_length + 1, BATCH), generator=torch.Generator().manual_seed(5))
    microbatch = Microbatch(tokens[:-1], tokens[1:], Dropout(0.0, 0, 0, tuple(range(BATCH))))

    theirs = gpt2(model, next(step.parameters()).dtype)
    state = theirs.state_dict()
    for name, value in as_gpt2({p.spec.name: p.detach() for p in step.parameters()}, model).items():
        assert state.pop(name).copy_(value) is not None
    assert set(state) <= {"lm_head.weight"}, "a weight of GPT-2 has no counterpart"

    with torch.no_grad():
        logits = stage.head.logits(stage.hidden(None, microbatch))[..., : model.vocab_size]
    expected = theirs(tokens[:-1].t()).logits.transpose(0, 1)
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)

    loss = stage(None, microbatch)
    loss.backward()
    expected = torch.nn.functional.cross_entropy(expected.flatten(0, 1), tokens[1:].flatten(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    gradients = as_gpt2({p.spec.name: p.main_grad for p in step.parameters()}, model)
    found = dict(theirs.named_parameters())
    assert found.keys() == gradients.keys()
    for name, parameter in found.items():
        scale = parameter.grad.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=tolerance * max(1.0, scale), msg=name)
