"""The GPT (paper section 2, GPT-2's architecture), sequence first: activations are [s, b, h].

s sequence length, b sequences in a microbatch, h hidden size, t tensor-parallel size.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from suite.experiment.point import Model, Point, Training
from suite.kernels.registry import Kernels
from suite.measure.flops import padded_vocab
from suite.model.dropout import Dropout
from suite.model.recompute import recomputed
from suite.model.split import layer_split, layers_of
from suite.parallel.parameters import ModelParameter, ParameterSpec, create_parameter
from suite.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorRanks, column_linear
from suite.parallel.vocab_parallel import vocab_cross_entropy, vocab_embedding
from suite.parallel.weight_gradients import WeightGradients, add_row_sum, row_sum, tap

INITIAL_STD = 0.02
NORM_EPS = 1e-5


@dataclass(frozen=True)
class Microbatch:
    """The input of one microbatch: tokens and targets [s, b], and what its dropout masks depend on."""

    tokens: torch.Tensor
    targets: torch.Tensor
    dropout: Dropout


@dataclass(frozen=True)
class Build:
    """What every module of this rank is built with."""

    model: Model
    tensor: TensorRanks
    training: Training
    dtype: torch.dtype
    kernels: Kernels
    gradients: WeightGradients | None = None  # where weight gradients go; None: to autograd

    @property
    def deferred(self) -> WeightGradients | None:
        """Where the gradients of biases and norms go, too, because the schedule splits the backward pass."""
        return self.gradients if self.gradients is not None and self.gradients.split else None

    def parameter(self, spec: ParameterSpec, shared: bool = False) -> ModelParameter:
        """This rank's shard of the parameter."""
        return create_parameter(spec, self.tensor.group, self.training.seed, self.dtype, shared)

    def with_bias(self, x: torch.Tensor, bias: ModelParameter) -> tuple[torch.Tensor, torch.Tensor]:
        """x and the bias to add to it, the bias's gradient being taken care of."""
        if self.deferred is None:
            return x, bias
        return tap(x, self.deferred, (bias, add_row_sum)), bias.detach()


class LayerNorm(nn.Module):
    """Layer norm over the hidden dimension."""

    def __init__(self, name: str, build: Build) -> None:
        super().__init__()
        shape = (build.model.hidden_size,)
        self.weight = build.parameter(ParameterSpec(f"{name}.weight", shape, fill=1.0, decay=False))
        self.bias = build.parameter(ParameterSpec(f"{name}.bias", shape, decay=False))
        self.kernel, self.deferred = build.kernels.layer_norm, build.deferred

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, h] -> [s, b, h]."""
        if self.deferred is None:
            return self.kernel(x, self.weight, self.bias, NORM_EPS)
        y = self.kernel(x, self.weight.detach(), self.bias.detach(), NORM_EPS)
        kept = x.detach()
        return tap(y, self.deferred, (self.weight, partial(self._add_gradient, kept)), (self.bias, add_row_sum))

    def _add_gradient(self, x: torch.Tensor, main: torch.Tensor, grad: torch.Tensor) -> None:
        """The weight's gradient [h] from the input and the output's gradient [s, b, h], in at least fp32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        one, zero = (torch.full_like(self.weight, value, dtype=dtype, requires_grad=False) for value in (1.0, 0.0))
        main.add_(row_sum(grad.to(dtype) * self.kernel(x.to(dtype), one, zero, NORM_EPS)))


class Attention(nn.Module):
    """Causal self-attention; the heads are split over tensor ranks.

    The rows of the query, key and value weight are ordered by head, then q, k, v, so that a tensor rank's
    contiguous share holds whole heads.
    """

    def __init__(self, layer: int, build: Build) -> None:
        super().__init__()
        h, name = build.model.hidden_size, f"layers.{layer}.attention"
        self.layer, self.build = layer, build
        self.kernel = build.kernels.attention
        self.head_size = h // build.model.heads
        self.recompute = build.training.recompute == "selective"
        local = build.model.heads // build.tensor.group.size
        self.heads = range(build.tensor.group.index * local, (build.tensor.group.index + 1) * local)
        rest = (build.tensor, build.training.seed, build.dtype, build.gradients)
        self.qkv = ColumnParallelLinear(f"{name}.qkv", h, 3 * h, INITIAL_STD, *rest)
        self.output = RowParallelLinear(f"{name}.output", h, h, _output_std(build.model), *rest)

    def forward(self, x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
        """[s, b, h] -> [s, b, h], without the output projection's bias."""
        qkv, bias = self.build.with_bias(self.qkv(x), self.qkv.bias)
        qkv = qkv + bias
        s, b, _ = qkv.shape
        q, k, v = qkv.view(s, b, len(self.heads), 3, self.head_size).permute(3, 1, 2, 0, 4)
        core = partial(self.kernel, mask=dropout.attention_mask(x.device, self.layer, self.heads))
        context = recomputed(core, q, k, v) if self.recompute else core(q, k, v)
        return self.output(context.permute(2, 0, 1, 3).reshape(s, b, -1))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, the inner features split over tensor ranks."""

    def __init__(self, layer: int, build: Build) -> None:
        super().__init__()
        h, f, name = build.model.hidden_size, build.model.ffn_hidden_size, f"layers.{layer}.mlp"
        rest = (build.tensor, build.training.seed, build.dtype, build.gradients)
        self.build, self.kernel = build, build.kernels.bias_gelu
        self.expand = ColumnParallelLinear(f"{name}.expand", h, f, INITIAL_STD, *rest)
        self.contract = RowParallelLinear(f"{name}.contract", f, h, _output_std(build.model), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, h] -> [s, b, h], without the output projection's bias."""
        return self.contract(self.kernel(*self.build.with_bias(self.expand(x), self.expand.bias)))


class AttentionPart(nn.Module):
    """A layer's attention, behind a layer norm and with a residual."""

    def __init__(self, layer: int, build: Build) -> None:
        super().__init__()
        self.layer, self.build, self.kernel = layer, build, build.kernels.bias_dropout_add
        self.norm = LayerNorm(f"layers.{layer}.norm1", build)
        self.attention = Attention(layer, build)

    def forward(self, x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
        """[s, b, h] -> [s, b, h]; with sequence parallelism this rank's rows [s/t, b, h] of both."""
        y, bias = self.build.with_bias(self.attention(self.norm(x), dropout), self.attention.output.bias)
        row = self.build.tensor.first_row(x.shape[0])
        return self.kernel(y, bias, x, dropout.hidden_mask(y, self.layer, "attention_output", row))


class FeedForwardPart(nn.Module):
    """A layer's feed-forward network, behind a layer norm and with a residual."""

    def __init__(self, layer: int, build: Build) -> None:
        super().__init__()
        self.layer, self.build, self.kernel = layer, build, build.kernels.bias_dropout_add
        self.norm = LayerNorm(f"layers.{layer}.norm2", build)
        self.mlp = FeedForward(layer, build)

    def forward(self, x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
        """[s, b, h] -> [s, b, h]; with sequence parallelism this rank's rows [s/t, b, h] of both."""
        y, bias = self.build.with_bias(self.mlp(self.norm(x)), self.mlp.contract.bias)
        row = self.build.tensor.first_row(x.shape[0])
        return self.kernel(y, bias, x, dropout.hidden_mask(y, self.layer, "mlp_output", row))


class Layer(nn.Module):
    """One transformer layer, or the half of it that a stage has; see `layer_split` for their numbers."""

    def __init__(self, layer: int, halves: range, build: Build) -> None:
        super().__init__()
        kinds = (AttentionPart, FeedForwardPart)
        self.parts = nn.ModuleList(kinds[half % 2](layer, build) for half in halves)

    def forward(self, x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
        """[s, b, h] -> [s, b, h]; with sequence parallelism this rank's rows [s/t, b, h] of both."""
        for part in self.parts:
            x = part(x, dropout)
        return x


class Embedding(nn.Module):
    """Token and position embeddings; the vocabulary is split over tensor ranks."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.ranks, self.build = build.tensor, build
        self.word = build.parameter(_word_spec(build))
        positions = (build.model.seq_length, build.model.hidden_size)
        self.position = build.parameter(ParameterSpec("embedding.position.weight", positions, std=INITIAL_STD))

    def forward(self, microbatch: Microbatch) -> torch.Tensor:
        """Tokens [s, b] -> [s, b, h], or this rank's rows [s/t, b, h] of it."""
        build, kernel = self.build, self.build.kernels.embedding_gradient
        words = vocab_embedding(microbatch.tokens, self.word, self.ranks, kernel, build.gradients)
        rows = slice(row := self.ranks.first_row(len(words)), row + len(words))
        if build.deferred is None:
            x = words + self.position[rows].unsqueeze(1)
        else:
            x = words + self.position.detach()[rows].unsqueeze(1)
            x = tap(x, build.deferred, (self.position, partial(_add_position_gradient, rows)))
        return microbatch.dropout.hidden(x, 0, "embedding", row)


def _add_position_gradient(rows: slice, main: torch.Tensor, grad: torch.Tensor) -> None:
    """The gradient of this rank's positions from that of its rows [s, b, h]."""
    main[rows].add_(grad.sum(1, dtype=torch.promote_types(grad.dtype, torch.float32)))


class Head(nn.Module):
    """Final norm, logits and loss. A tied weight is the embedding's own parameter, or a copy on another rank."""

    def __init__(self, build: Build, tied_to: ModelParameter | None) -> None:
        super().__init__()
        self.ranks, self.gradients, self.kernel = build.tensor, build.gradients, build.kernels.cross_entropy
        self.vocab_size = build.model.vocab_size
        self.norm = LayerNorm("final_norm", build)
        if not build.model.tied_embeddings:
            self.weight = build.parameter(_word_spec(build, "head.weight"))
        elif tied_to is not None:
            self.weight = tied_to
        else:
            self.weight = build.parameter(_word_spec(build), shared=True)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, h] (or this rank's rows of it) -> this rank's columns of the logits [s, b, Vpadded/t]."""
        return column_linear(self.norm(x), self.weight, self.ranks, self.gradients)

    def forward(self, x: torch.Tensor, microbatch: Microbatch) -> torch.Tensor:
        """Cross entropy summed over the microbatch's tokens."""
        logits = self.logits(x)
        return vocab_cross_entropy(logits, microbatch.targets, self.vocab_size, self.ranks.group, self.kernel)


class Stage(nn.Module):
    """One virtual stage: its layers, with the embedding on the first and the head on the last."""

    def __init__(self, build: Build, halves: range, first: bool, last: bool, tied_to: ModelParameter | None) -> None:
        super().__init__()
        self.embedding = Embedding(build) if first else None
        layers = layers_of(halves)
        self.layers = nn.ModuleList(Layer(layer, own, build) for layer, own in layers.items())
        every = build.training.recompute_layers if build.training.recompute == "full" else 0
        self.blocks = [self.layers[start : start + every] for start in range(0, len(layers), every)] if every else []
        word = self.embedding.word if self.embedding is not None else tied_to
        self.head = Head(build, word) if last else None

    def hidden(self, x: torch.Tensor | None, microbatch: Microbatch) -> torch.Tensor:
        """The activations [s, b, h] after this stage's last layer."""
        if self.embedding is not None:
            x = self.embedding(microbatch)
        if x is None:
            raise ValueError("only the first stage has no input activations")
        for block in self.blocks:
            x = recomputed(partial(_through, block, dropout=microbatch.dropout), x)
        return x if self.blocks else _through(self.layers, x, microbatch.dropout)

    def forward(self, x: torch.Tensor | None, microbatch: Microbatch) -> torch.Tensor:
        """Activations [s, b, h] for the next stage, or on the last stage the summed loss.

        `x` [s, b, h] is the previous stage's output, None on the first stage.
        """
        x = self.hidden(x, microbatch)
        return x if self.head is None else self.head(x, microbatch)


def _through(layers: Iterable[nn.Module], x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
    for layer in layers:
        x = layer(x, dropout)
    return x


def build_stages(
    point: Point, hosted: list[tuple[int, int]], build: Build, device: torch.device
) -> dict[tuple[int, int], Stage]:
    """The (virtual stage, replica) of one rank. A tied weight that both ends share here exists once."""
    split = layer_split(point.model, point.virtual_stages, point.schedule.split)
    stages: dict[tuple[int, int], Stage] = {}
    word: ModelParameter | None = None
    for number, replica in sorted(hosted):
        last = number == point.virtual_stages - 1
        stage = Stage(build, split[number], number == 0, last, word).to(device)
        if stage.embedding is not None:
            word = stage.embedding.word
        stages[number, replica] = stage
    return stages


def _word_spec(build: Build, name: str = "embedding.word.weight") -> ParameterSpec:
    vocab = build.model.vocab_size
    padded = padded_vocab(vocab, build.tensor.group.size)
    tied = build.model.tied_embeddings
    return ParameterSpec(name, (vocab, build.model.hidden_size), shard=0, std=INITIAL_STD, padded=padded, tied=tied)


def _output_std(model: Model) -> float:
    """Output projections start smaller, so that the residual sum keeps its scale with depth (GPT-2)."""
    return INITIAL_STD / math.sqrt(2 * model.layers)
