"""The suite's GPT from torch's own modules, batch first: activations are [b, s, h].

Parameters have the names, shapes and initial values of the suite's.
"""

from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.nn import functional

from suite.experiment.point import Model, Point
from suite.kernels.registry import select
from suite.model.gpt import Build, build_stages
from suite.parallel.parameters import ModelParameter
from suite.parallel.tensor_parallel import TensorRanks


class Attention(nn.Module):
    """Causal self-attention of the heads that this rank holds."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        h = model.hidden_size
        self.head_size = h // model.heads
        self.qkv = nn.Linear(h, 3 * h)  # rows by head, then query, key and value
        self.output = nn.Linear(h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] -> [b, s, h]."""
        qkv = self.qkv(x)
        b, s, _ = qkv.shape
        q, k, v = qkv.view(b, s, -1, 3, self.head_size).permute(3, 0, 2, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(b, s, -1))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.expand = nn.Linear(model.hidden_size, model.ffn_hidden_size)
        self.contract = nn.Linear(model.ffn_hidden_size, model.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] -> [b, s, h]."""
        return self.contract(functional.gelu(self.expand(x), approximate="tanh"))


class Layer(nn.Module):
    """One transformer layer, or the half of it that a stage has: 0 its attention, 1 its feed-forward part."""

    def __init__(self, model: Model, halves: Collection[int]) -> None:
        super().__init__()
        self.halves = halves
        if 0 in halves:
            self.norm1 = nn.LayerNorm(model.hidden_size)
            self.attention = Attention(model)
        if 1 in halves:
            self.norm2 = nn.LayerNorm(model.hidden_size)
            self.mlp = FeedForward(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] -> [b, s, h]."""
        if 0 in self.halves:
            x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x)) if 1 in self.halves else x


class Embedding(nn.Module):
    """Token and position embeddings."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word = nn.Embedding(model.vocab_size, model.hidden_size)
        self.position = nn.Embedding(model.seq_length, model.hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[b, s] -> [b, s, h]."""
        return self.word(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class Gpt(nn.Module):
    """Some half layers, with the embedding if they are the first, and final norm and head if they are the last."""

    def __init__(self, model: Model, halves: Sequence[int]) -> None:
        super().__init__()
        first, last = halves[0] == 0, halves[-1] == 2 * model.layers - 1
        self.embedding = Embedding(model) if first else None
        layers = {half // 2: {other % 2 for other in halves if other // 2 == half // 2} for half in halves}
        self.layers = nn.ModuleDict({str(layer): Layer(model, own) for layer, own in layers.items()})
        self.final_norm = nn.LayerNorm(model.hidden_size) if last else None
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False) if last else None
        if self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.word.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [b, s] or activations [b, s, h] -> activations, or logits [b, s, V]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None or self.final_norm is None else self.head(self.final_norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy over the tokens of logits [b, s, V]."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def suites_weights(point: Point) -> dict[str, torch.Tensor]:
    """The initial values of the suite's whole model, by name; the head's weight is that of the tied embedding."""
    whole = point.model_copy(update={"parallel": type(point.parallel)(), "schedule": type(point.schedule)()})
    build = Build(whole.model, TensorRanks(), whole.training, torch.float32, select("auto"))
    (stage,) = build_stages(whole, [(0, 0)], build, torch.device("cpu")).values()
    weights = {p.spec.name: p.detach() for p in stage.parameters() if isinstance(p, ModelParameter)}
    return weights | {"head.weight": weights["embedding.word.weight"]}


def gpt(point: Point, halves: Sequence[int], weights: dict[str, torch.Tensor]) -> Gpt:
    """Some half layers of the point's model, with these weights."""
    made = Gpt(point.model, halves)
    made.load_state_dict({name: weights[name] for name in made.state_dict()})
    return made
