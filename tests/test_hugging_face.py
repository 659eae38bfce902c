"""GPT-2 checkpoints of transformers: in under any layout, the same function, and out again bit for bit."""

import json
import os
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.distributed as dist
from layouts import point, training_step
from ranks import run_ranks

from suite.model.dropout import Dropout
from suite.model.gpt import Microbatch
from suite.model.hugging_face import read_gpt2, write_gpt2
from suite.parallel.whole import fill_parameters, gather_parameters
from suite.training.checkpoint import Checkpoints
from suite.training.gpt2_weights import export_gpt2, import_gpt2

transformers = pytest.importorskip("transformers", reason="the optional package transformers is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="the optional package safetensors is missing")

BATCH, LENGTH = 2, 10
SHAPE = {"layers": 5, "hidden_size": 24, "heads": 4, "vocab_size": 67, "seq_length": LENGTH, "dropout": 0.0}
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
LAYOUTS = [((1, 1, 1), "1f1b"), ((2, 2, 1), "1f1b"), ((1, 2, 1), "interleaved"), ((2, 1, 2), "1f1b")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Makes transformers' GPT-2 with random weights, biases and norms too, saves it, and gives model and folder."""
    made = {}

    def make(precision="fp32", **changes):
        key = (precision, *changes.items())
        if key not in made:
            fields = {"n_layer": 5, "n_embd": 24, "n_head": 4, "n_positions": LENGTH, "vocab_size": 67, **changes}
            off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            config = transformers.GPT2Config(**off, **fields, bos_token_id=0, eos_token_id=0)
            config._attn_implementation = "eager"
            torch.manual_seed(7)
            model = transformers.GPT2LMHeadModel(config).to(DTYPES[precision]).eval()
            for parameter in model.parameters():
                parameter.data.normal_(std=0.3)
            folder = tmp_path_factory.mktemp("gpt2")
            model.save_pretrained(folder)
            made[key] = model, folder
        return made[key]

    return make


@pytest.fixture
def copy(saved, tmp_path):
    """A checkpoint of its own, to be damaged."""
    return shutil.copytree(saved()[1], tmp_path / "checkpoint")


def tensors_of(folder):
    return safetensors_torch.load_file(folder / "model.safetensors")


def assert_same_bits(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def some_tokens():
    return torch.randint(67, (LENGTH + 1, BATCH), generator=torch.Generator().manual_seed(5))


def at_layout(layout, schedule="1f1b", precision="fp32", **model):
    parallel = {"sharding": "zero1" if layout[2] > 1 else "none"}
    names = dict(zip(("tensor", "pipeline", "data"), layout, strict=True))
    training = {"precision": precision, "optimizer": "adamw"}
    return point(layout, schedule, 4, model={**SHAPE, **model}, parallel={**names, **parallel}, training=training)


def import_and_export(at, folder, out):
    """On a rank: the logits [s, b, V] with the imported weights, and loss and norm of the step's own iteration."""
    step = training_step(at)
    import_gpt2(folder, step)
    tokens = some_tokens()
    microbatch = Microbatch(tokens[:-1], tokens[1:], Dropout(0.0, 0, 0, tuple(range(BATCH))))
    pipeline, tensor = step.topology.pipeline, step.topology.tensor
    shape, dtype = (LENGTH, BATCH, at.model.hidden_size), next(step.parameters()).dtype
    x, logits = None, None
    with torch.no_grad():
        for number in range(at.virtual_stages):
            host = number % pipeline.size
            if host == pipeline.index:
                x = step.stages[number, 0].hidden(x, microbatch)
                if step.stages[number, 0].head is not None:
                    columns = step.stages[number, 0].head.logits(x)
                    parts = tensor.all_gather(columns.contiguous()).chunk(tensor.size)
                    logits = torch.cat(parts, dim=-1)[..., : at.model.vocab_size].numpy()
            else:
                x = torch.empty(shape, dtype=dtype)
            if pipeline.size > 1:
                dist.broadcast(x, pipeline.ranks[host], group=pipeline.handle)
    loss, _ = step.gradients(0)
    export_gpt2(out, step)
    return logits, loss


@pytest.mark.processes
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp64", 1e-9)])
@pytest.mark.parametrize(("layout", "schedule"), LAYOUTS)
def test_an_imported_model_is_the_same_function_and_exports_bit_for_bit(
    saved, tmp_path, layout, schedule, precision, tolerance
):
    theirs, folder = saved(precision)
    at = at_layout(layout, schedule, precision)
    results = run_ranks(at.parallel.ranks, import_and_export, at, folder, tmp_path)
    with torch.no_grad():
        expected = theirs(some_tokens()[:-1].t()).logits.transpose(0, 1)
    found = [torch.from_numpy(logits) for logits, _ in results if logits is not None]
    assert len(found) == layout[0] * layout[2], "every rank with the head"
    for logits in found:
        torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    wanted = own_loss(theirs, at)
    assert [loss for _, loss in results] == pytest.approx([wanted] * len(results), rel=tolerance)
    assert_same_bits(tensors_of(tmp_path), tensors_of(folder))


def own_loss(theirs, at):
    """transformers' loss on the first iteration's tokens."""
    batches = training_step(at_layout((1, 1, 1))).batches
    tokens = torch.stack([batches.source.sequence(n) for n in range(at.training.global_batch)])
    with torch.no_grad():
        logits = theirs(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


@pytest.mark.parametrize(
    "changes", [{"tie_word_embeddings": False}, {"n_inner": 40}, {"n_head": 1}, {"n_head": 24}, {"n_layer": 1}]
)
def test_every_shape_goes_through_the_suites_names_and_back(saved, tmp_path, changes):
    theirs, folder = saved(**changes)
    model, tensors = read_gpt2(folder)
    assert model.layers == changes.get("n_layer", 5)
    assert model.heads == changes.get("n_head", 4)
    assert model.ffn_hidden_size == changes.get("n_inner", 96)
    assert model.tied_embeddings == changes.get("tie_word_embeddings", True)
    step = training_step(point(batch=2, model=model.model_dump()))
    assert {p.spec.name: p.spec.shape for p in step.parameters()} == {n: tuple(t.shape) for n, t in tensors.items()}
    write_gpt2(tmp_path, model, tensors)
    assert read_gpt2(tmp_path)[0] == model
    assert_same_bits(tensors_of(tmp_path), tensors_of(folder))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.equal(again(some_tokens().t()[:, :-1]).logits, theirs(some_tokens().t()[:, :-1]).logits)


@pytest.mark.processes
def test_an_untied_head_comes_back_from_the_last_stage(saved, tmp_path):
    _, folder = saved(tie_word_embeddings=False)
    at = at_layout((2, 2, 1), tied_embeddings=False)
    run_ranks(4, import_and_export, at, folder, tmp_path)
    assert_same_bits(tensors_of(tmp_path), tensors_of(folder))


def import_and_train(at, folder):
    step = training_step(at)
    import_gpt2(folder, step)
    before = [piece.master.clone() for piece in step.optimizer.pieces]
    step.run(0)
    moved = [(piece.master - old).abs().max().item() for piece, old in zip(step.optimizer.pieces, before, strict=True)]
    shards = gather_parameters(step.parameters(), step.topology)
    return max(moved), None if shards is None else {name: tensor.float().numpy() for name, tensor in shards.items()}


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(1, 1, 1), (1, 1, 2)])
def test_training_in_16_bits_goes_on_from_the_imported_weights(saved, layout):
    _, folder = saved()
    results = run_ranks(layout[2], import_and_train, at_layout(layout, precision="bf16"), folder)
    _, tensors = read_gpt2(folder)
    assert all(0 < moved < 0.2 for moved, _ in results), "one AdamW step of size 0.1"
    for name, values in results[0][1].items():
        assert (torch.from_numpy(values) - tensors[name]).abs().max() < 0.2, name


def save_as_checkpoint(at, folder, out):
    step = training_step(at)
    import_gpt2(folder, step)
    Checkpoints(out, step).save(0)


def load_and_export(at, checkpoint, out):
    step = training_step(at)
    assert Checkpoints(checkpoint, step).load() is not None
    export_gpt2(out, step)
    return [piece.master.numpy() for piece in step.optimizer.pieces]


@pytest.mark.processes
def test_from_hugging_face_through_a_checkpoint_to_another_layout_and_back(saved, tmp_path):
    _, folder = saved()
    run_ranks(4, save_as_checkpoint, at_layout((2, 2, 1)), folder, tmp_path / "sharded")
    run_ranks(2, load_and_export, at_layout((1, 2, 1), "interleaved"), tmp_path / "sharded", tmp_path / "out")
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(folder))


def test_padded_rows_are_zero_and_only_the_wanted_tensors_are_read(saved):
    _, folder = saved()
    step = training_step(at_layout((1, 1, 1)))
    model, tensors = read_gpt2(folder, {"embedding.word.weight"})
    assert list(tensors) == ["embedding.word.weight"]
    (word,) = [p for p in step.parameters() if p.spec.name == "embedding.word.weight"]
    assert word.shape[0] > model.vocab_size
    word.data.fill_(1.0)
    fill_parameters([word], tensors, step.topology.tensor)
    assert torch.equal(word[:67], tensors["embedding.word.weight"])
    assert not word[67:].any()


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_the_type_of_the_weights_is_kept(saved, tmp_path, precision):
    _, folder = saved(precision)
    step = training_step(at_layout((1, 1, 1), precision=precision))
    import_gpt2(folder, step)
    export_gpt2(tmp_path, step)
    assert_same_bits(tensors_of(tmp_path), tensors_of(folder))
    assert transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype="auto").dtype == DTYPES[precision]


def rewrite(folder, change):
    """Change the tensors of a checkpoint in place."""
    tensors = tensors_of(folder)
    change(tensors)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    safetensors_torch.save_file(tensors, folder / "model.safetensors")


def test_names_without_prefix_and_masks_of_old_checkpoints_are_read(copy):
    expected = read_gpt2(copy)

    def older(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["lm_head.weight"] = tensors["wte.weight"]
        for layer in range(5):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.uint8).tril()
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(copy, older)
    assert read_gpt2(copy)[0] == expected[0]
    assert_same_bits(read_gpt2(copy)[1], expected[1])


def test_a_checkpoint_in_several_files_is_read(saved, tmp_path):
    theirs, folder = saved()
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_same_bits(read_gpt2(tmp_path)[1], read_gpt2(folder)[1])
    os.remove(max(tmp_path.glob("model-*.safetensors")))
    with pytest.raises(ValueError, match="cannot be read"):
        read_gpt2(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "works"),
    [
        ("activation_function", "gelu", 'activation_function="gelu_new" would work'),
        ("activation_function", ["relu"], 'activation_function="gelu_new" would work'),
        ("layer_norm_epsilon", 1e-6, "layer_norm_epsilon=1e-05 would work"),
        ("model_type", "llama", 'model_type="gpt2" would work'),
        ("scale_attn_weights", False, "scale_attn_weights=true would work"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx=false would work"),
        ("add_cross_attention", True, "add_cross_attention=false would work"),
        ("attn_pdrop", 0.1, "three equal rates would work"),
        ("n_layer", None, "a whole number of at least 1 would work"),
        ("n_head", 5, "a multiple of n_head=5 would work"),
        ("n_layer", 4, "one without would work"),
        ("n_layer", 6, "one with all tensors of a GPT-2 of 6 layers would work"),
        ("n_inner", 80, "[24, 80] of a floating-point type would work"),
        ("tie_word_embeddings", False, "lacks lm_head.weight; "),
        ("tie_word_embeddings", "yes", "would work"),
    ],
)
def test_a_configuration_of_another_model_is_refused_in_one_sentence(copy, key, value, works):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the text is looked at)
        read_gpt2(copy)
    assert works in str(error.value)
    assert str(copy) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_or_missing_file_is_refused(copy, tmp_path):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read"):
        read_gpt2(copy)
    weights.unlink()
    with pytest.raises(ValueError, match=r"there is no model\.safetensors"):
        read_gpt2(copy)
    (copy / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ValueError, match="lists no weight_map"):
        read_gpt2(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_gpt2(copy)
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        read_gpt2(tmp_path / "nothing")


def test_tensors_that_do_not_fit_are_refused(copy):
    name = "transformer.h.2.mlp.c_fc.weight"
    original = tensors_of(copy)[name]
    rewrite(copy, lambda tensors: tensors.update({name: original.to(torch.int8)}))
    with pytest.raises(ValueError, match="of int8"):
        read_gpt2(copy)
    rewrite(copy, lambda tensors: tensors.update({name: original, "transformer.extra": original}))
    with pytest.raises(ValueError, match="has extra, for which"):
        read_gpt2(copy)
    rewrite(copy, lambda tensors: (tensors.pop("transformer.extra"), tensors.pop(name)))
    with pytest.raises(ValueError, match=r"lacks h\.2\.mlp\.c_fc\.weight"):
        read_gpt2(copy)
    rewrite(copy, lambda tensors: tensors.update({name: original, "lm_head.weight": torch.zeros(67, 24)}))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from wte\.weight"):
        read_gpt2(copy)


def test_what_is_exported_or_filled_must_be_whole(saved, tmp_path):
    model, tensors = read_gpt2(saved()[1])
    with pytest.raises(ValueError, match=r"final_norm\.bias to export has the shape \[3\]; \[24\] would work"):
        write_gpt2(tmp_path, model, {**tensors, "final_norm.bias": torch.zeros(3)})
    del tensors["final_norm.bias"]
    with pytest.raises(ValueError, match=r"no values for final_norm\.bias"):
        write_gpt2(tmp_path, model, tensors)
    assert list(tmp_path.iterdir()) == []
    step = training_step(at_layout((1, 1, 1)))
    with pytest.raises(ValueError, match=r"no values for the parameter final_norm\.bias"):
        fill_parameters(step.parameters(), tensors, step.topology.tensor)
    tensors["final_norm.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"has the shape|have the shape \[3\]; \[24\] would work"):
        fill_parameters(step.parameters(), tensors, step.topology.tensor)


@pytest.mark.parametrize(
    ("field", "value", "works"),
    [("layers", 4, 5), ("heads", 2, 4), ("vocab_size", 68, 67), ("tied_embeddings", False, "true")],
)
def test_a_checkpoint_of_another_shape_is_refused_with_the_field(saved, field, value, works):
    step = training_step(at_layout((1, 1, 1), **{field: value}))
    with pytest.raises(ValueError, match=f"^model.{field}={str(value).lower()}: .*model.{field}={works} would work$"):
        import_gpt2(saved()[1], step)


def test_without_the_package_it_says_what_to_install(saved, monkeypatch):
    folder = saved()[1]
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ValueError, match=r"pip install 'ptdp-suite\[hf\]' would work"):
        read_gpt2(folder)
