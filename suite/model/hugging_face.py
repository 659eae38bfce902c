"""GPT-2 checkpoints of Hugging Face's transformers (config.json and safetensors): read and written.

Both models are the same function, written down differently. transformers multiplies by weights [in, out], the suite by
[out, in]; and transformers orders the rows of queries, keys and values by part, then head, the suite by head, then
part, so that a tensor rank's share is contiguous. Both are permutations, so a round trip keeps every bit.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suite.experiment.point import Model
from suite.model.gpt import NORM_EPS

HEAD = "lm_head.weight"
WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
PREFIX = "transformer."  # of all names but the head's; checkpoints of the bare model are without it
# What transformers fills in where config.json is silent, and the suite's model is the same as.
_FIXED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the same function
    "layer_norm_epsilon": (NORM_EPS,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask, which old checkpoints carry
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class _Tensor:
    """A parameter: its two names (the checkpoint's without prefix), its shape there, and what differs in the suite.

    `transposed` is a linear layer's weight; with `heads` the layer's outputs are queries, keys and values.
    """

    name: str
    theirs: str
    shape: tuple[int, ...]
    transposed: bool = False
    heads: int = 0

    @property
    def our_shape(self) -> tuple[int, ...]:
        """The shape in the suite."""
        return self.shape[::-1] if self.transposed else self.shape

    def to_ours(self, tensor: torch.Tensor) -> torch.Tensor:
        """The checkpoint's tensor [*shape] as the suite has it [*our_shape]."""
        rows = tensor.t() if self.transposed else tensor
        return (_swap(rows, 3, self.heads) if self.heads else rows).contiguous()

    def to_theirs(self, rows: torch.Tensor) -> torch.Tensor:
        """The suite's tensor [*our_shape] as the checkpoint has it [*shape]."""
        rows = _swap(rows, self.heads, 3) if self.heads else rows
        return (rows.t() if self.transposed else rows).contiguous()


def read_gpt2(folder: str | Path, names: Collection[str] | None = None) -> tuple[Model, dict[str, torch.Tensor]]:
    """The shape of a checkpoint's model, and its whole tensors by the suite's names, in the checkpoint's type.

    `names` are the tensors wanted, all where left out; no other is read from disk.

    Raises:
        ValueError: the checkpoint is missing, damaged, or of a model that the suite's GPT is not.
    """
    folder = Path(folder)
    model = _read_config(folder / CONFIG)
    with _Checkpoint(folder) as checkpoint:
        table = _table(model)
        _check_names(folder, model, table, checkpoint.names)
        wanted = [entry for entry in table if names is None or entry.name in names]
        tensors = {entry.name: entry.to_ours(checkpoint.tensor(entry.theirs, entry.shape)) for entry in wanted}
        word = table[0]
        if model.tied_embeddings and HEAD in checkpoint.names and word.name in tensors:
            head = checkpoint.tensor(HEAD, word.shape)
            if not torch.equal(head, tensors[word.name]):
                raise ValueError(
                    f"{folder}: tie_word_embeddings is true and {HEAD} differs from {word.theirs}; "
                    "a checkpoint with tie_word_embeddings false would work"
                )
    return model, tensors


def write_gpt2(folder: str | Path, model: Model, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write whole tensors by the suite's names as a checkpoint that transformers' GPT2LMHeadModel reads.

    Raises:
        ValueError: a tensor is missing or has another shape than the model says.
    """
    library = _safetensors()
    folder = Path(folder)
    converted = {}
    for entry in _table(model):
        if entry.name not in tensors:
            raise ValueError(f"{folder}: there are no values for {entry.name} to export; all parameters would work")
        ours = tensors[entry.name]
        if tuple(ours.shape) != entry.our_shape:
            raise ValueError(
                f"{folder}: {entry.name} to export has the shape {list(ours.shape)}; {list(entry.our_shape)} would work"
            )
        converted[entry.theirs if entry.theirs == HEAD else PREFIX + entry.theirs] = entry.to_theirs(ours)
    config = _config(model, next(iter(converted.values())).dtype)
    folder.mkdir(parents=True, exist_ok=True)
    # Written beside their names and renamed, so that an interrupted export leaves no half file under them.
    partial = folder / f"{WEIGHTS}.partial"
    library.torch.save_file(converted, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS)
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(partial, folder / CONFIG)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ValueError(
            "checkpoints of Hugging Face need the package safetensors, which is not installed; "
            "pip install 'ptdp-suite[hf]' would work"
        ) from None
    return safetensors


def _read_config(path: Path) -> Model:
    if not path.is_file():
        raise ValueError(f"{path.parent}: there is no {CONFIG}; a folder that save_pretrained has written would work")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it is not JSON ({error}); the {CONFIG} of a GPT-2 would work") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: it is not a JSON object; the {CONFIG} of a GPT-2 would work")
    for key, known in _FIXED.items():
        if config.get(key, known[0]) not in known:
            raise ValueError(
                f"{path}: {key}={json.dumps(config[key])} is not what the suite's GPT computes; "
                f"{key}={json.dumps(known[0])} would work"
            )
    rates = {key: config.get(key, 0.1) for key in _DROPOUTS}
    if len(set(rates.values())) > 1:
        shown = ", ".join(f"{key}={rate}" for key, rate in rates.items())
        raise ValueError(f"{path}: {shown}: the suite has one dropout rate for all; three equal rates would work")
    hidden = _size(path, config, "n_embd")
    fields = {
        "layers": _size(path, config, "n_layer"),
        "hidden_size": hidden,
        "heads": _size(path, config, "n_head"),
        "ffn_hidden_size": 4 * hidden if config.get("n_inner") is None else _size(path, config, "n_inner"),
        "vocab_size": _size(path, config, "vocab_size"),
        "seq_length": _size(path, config, "n_positions"),
        "dropout": rates["resid_pdrop"],
        "tied_embeddings": config.get("tie_word_embeddings", True),
    }
    if hidden % fields["heads"]:
        works = f"a multiple of n_head={fields['heads']}"
        raise ValueError(f"{path}: n_embd={hidden} does not divide into its heads; {works} would work")
    try:
        return Model.model_validate(fields)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}; the {CONFIG} of a GPT-2 would work") from None


def _size(path: Path, config: dict[str, Any], key: str) -> int:
    size = config.get(key)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{path}: {key}={json.dumps(size)} is not a size; a whole number of at least 1 would work")
    return size


def _config(model: Model, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        **{key: known[0] for key, known in _FIXED.items()},
        "n_layer": model.layers,
        "n_embd": model.hidden_size,
        "n_head": model.heads,
        "n_inner": None if model.ffn_hidden_size == 4 * model.hidden_size else model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "n_positions": model.seq_length,
        **dict.fromkeys(_DROPOUTS, model.dropout),
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


class _Checkpoint(ExitStack):
    """The tensors of a folder by their names without prefix, in one file or in several with an index."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.where: dict[str, tuple[Any, str]] = {}
        library = _safetensors()
        for file in self._files():
            try:
                opened = self.enter_context(library.safe_open(file, framework="pt"))
            except (library.SafetensorError, OSError) as error:
                raise ValueError(f"{file}: it cannot be read ({error}); an undamaged file would work") from None
            self.where |= {name.removeprefix(PREFIX): (opened, name) for name in opened.keys()}  # noqa: SIM118

    def _files(self) -> list[Path]:
        whole, index = self.folder / WEIGHTS, self.folder / INDEX
        if whole.is_file():
            return [whole]
        if not index.is_file():
            raise ValueError(f"{self.folder}: there is no {WEIGHTS}; a folder that save_pretrained wrote would work")
        try:
            return [self.folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError):
            raise ValueError(f"{index}: it lists no weight_map; an undamaged file would work") from None

    @property
    def names(self) -> Collection[str]:
        """The tensors in the checkpoint."""
        return self.where.keys()

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor, read from disk."""
        opened, full = self.where[name]
        found: torch.Tensor = opened.get_tensor(full)
        if tuple(found.shape) != shape or found.dtype not in _FLOATS:
            raise ValueError(
                f"{self.folder}: {full} is {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}, and "
                f"{CONFIG} says otherwise; {list(shape)} of a floating-point type would work"
            )
        return found


def _check_names(folder: Path, model: Model, table: list[_Tensor], present: Collection[str]) -> None:
    needed = {entry.theirs for entry in table}
    missing = sorted(needed - set(present))
    if missing:
        raise ValueError(
            f"{folder}: the checkpoint lacks {_some(missing)}; one with all tensors of a GPT-2 of {model.layers} "
            "layers would work"
        )
    spare = {HEAD} if model.tied_embeddings else set()
    unknown = sorted(name for name in present if name not in needed | spare and not _MASKS.fullmatch(name))
    if unknown:
        raise ValueError(
            f"{folder}: the checkpoint has {_some(unknown)}, for which a GPT-2 of {model.layers} layers has no place; "
            "one without would work"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _table(model: Model) -> list[_Tensor]:
    """Every parameter of the model, the word embedding first."""
    h, f, v = model.hidden_size, model.ffn_hidden_size, model.vocab_size
    table = [
        _Tensor("embedding.word.weight", "wte.weight", (v, h)),
        _Tensor("embedding.position.weight", "wpe.weight", (model.seq_length, h)),
    ]
    for layer in range(model.layers):
        ours, theirs = f"layers.{layer}", f"h.{layer}"
        table += _norm(f"{ours}.norm1", f"{theirs}.ln_1", h) + _norm(f"{ours}.norm2", f"{theirs}.ln_2", h)
        table += _linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", (h, 3 * h), model.heads)
        table += _linear(f"{ours}.attention.output", f"{theirs}.attn.c_proj", (h, h))
        table += _linear(f"{ours}.mlp.expand", f"{theirs}.mlp.c_fc", (h, f))
        table += _linear(f"{ours}.mlp.contract", f"{theirs}.mlp.c_proj", (f, h))
    table += _norm("final_norm", "ln_f", h)
    if not model.tied_embeddings:
        table.append(_Tensor("head.weight", HEAD, (v, h)))
    return table


def _norm(name: str, theirs: str, size: int) -> list[_Tensor]:
    return [_Tensor(f"{name}.{part}", f"{theirs}.{part}", (size,)) for part in ("weight", "bias")]


def _linear(name: str, theirs: str, shape: tuple[int, int], heads: int = 0) -> list[_Tensor]:
    weight = _Tensor(f"{name}.weight", f"{theirs}.weight", shape, transposed=True, heads=heads)
    return [weight, _Tensor(f"{name}.bias", f"{theirs}.bias", shape[1:], heads=heads)]


def _swap(rows: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    """Rows ordered by `outer`, then `inner`, to rows ordered by `inner`, then `outer`; groups stay whole."""
    return rows.reshape(outer, inner, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
