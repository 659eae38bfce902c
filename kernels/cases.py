"""The operators at sizes of training: what they are called with, what plain torch does instead, what they must cost.

Bytes and FLOPs are those of a fused kernel: every operand read once, every result written once, weights and numbers of
a row left out. What one operator after another moves is counted in `traffic`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

from suite.kernels.adamw import Hyperparameters
from suite.kernels.dropout_mask import DropoutMask
from suite.kernels.registry import implementation


class Sizes(NamedTuple):
    """A layer's sizes: sequence length, sequences, hidden size, heads, vocabulary."""

    s: int
    b: int
    h: int
    heads: int
    vocabulary: int

    def __str__(self) -> str:
        return f"s={self.s} b={self.b} h={self.h} heads={self.heads} V={self.vocabulary}"


class Cost(NamedTuple):
    """Bytes and FLOPs of a fused kernel, forward and backward; what works in place has no backward pass."""

    bytes: float
    flops: float
    bytes_backward: float = 0.0
    flops_backward: float = 0.0


@dataclass(frozen=True)
class Case:
    """One operator at one size."""

    operator: str
    sizes: Sizes
    leaves: Sequence[torch.Tensor]  # inputs that have a gradient; none where it works in place
    constants: Sequence[Any]
    plain: Callable[..., Any]  # plain torch, one operator after another
    cost: Cost
    dropout: bool = False

    def run(self, function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        """Forward."""
        result = function(*self.leaves, *self.constants)
        return result if isinstance(result, tuple) else () if result is None else (result,)

    def back(self, results: tuple[torch.Tensor, ...]) -> None:
        """Backward, as far as there is one; gradients of the results are the results."""
        if self.leaves:
            torch.autograd.grad(results, list(self.leaves), [result.detach() for result in results])


def cases(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """Every operator at these sizes."""
    s, b, h, heads, vocabulary = sizes
    e, wide = dtype.itemsize, torch.promote_types(dtype, torch.float32)
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(1)

    def random(*shape: int, of: torch.dtype = dtype, leaf: bool = True) -> torch.Tensor:
        found = torch.randn(*shape, dtype=torch.float32, device=device, generator=generator)
        return found.to(of).requires_grad_(leaf)

    def numbers(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, device=device, generator=generator)

    def mask(blocks: int) -> DropoutMask:
        return DropoutMask(numbers(1 << 31, blocks, 2).to(torch.int32), 0.1)

    n, f, scores, logits, weights = s * b * h, 4 * s * b * h, b * heads * s * s, s * b * vocabulary, 4 * h * h
    x, residual, weight, bias = random(s, b, h), random(s, b, h), random(h), random(h)
    qkv = [random(b, heads, s, h // heads) for _ in range(3)]
    core = 4.0 * s * s * b * h / 2  # the causal half of two products
    hidden = numbers(2, b, 1, s, s).bool()
    hidden[..., 0] = False
    targets, rows, flat = numbers(vocabulary, s, b), random(s, b, h, leaf=False), random(weights, of=wide, leaf=False)
    w = flat.itemsize
    adam = (flat, *(random(weights, of=wide, leaf=False).abs() for _ in range(3)), 3)
    constants = Hyperparameters(1e-4, (0.9, 0.999), 1e-8, 0.01)

    def found(operator: str, leaves: Sequence[torch.Tensor], rest: Sequence[Any], cost: Cost, **more: Any) -> Case:
        plain = more.pop("plain", implementation(operator, "reference"))
        return Case(operator, sizes, leaves, rest, plain, cost, **more)

    return [
        found(
            "layer_norm",
            [x, weight, bias],
            [1e-5],
            Cost(2 * n * e, 7 * n, 3 * n * e, 13 * n),
            plain=lambda x, w, b, eps: layer_norm(x, (h,), w, b, eps),
        ),
        found(
            "residual_layer_norm",
            [x, residual, weight, bias],
            [1e-5],
            Cost(4 * n * e, 8 * n, 4 * n * e, 14 * n),
            plain=lambda x, r, w, b, eps: (layer_norm(total := x + r, (h,), w, b, eps), total),
        ),
        found(
            "bias_gelu",
            [random(s, b, 4 * h), random(4 * h)],
            [],
            Cost(2 * f * e, 9 * f, 3 * f * e, 20 * f),
            plain=lambda x, b: gelu(x + b, approximate="tanh"),
        ),
        found("bias_dropout_add", [x, bias, residual], [mask(b)], Cost(3 * n * e, 3 * n, 2 * n * e, 2 * n)),
        found(
            "causal_softmax",
            [random(b, heads, s, s)],
            [0.125],
            Cost(1.5 * scores * e, 3 * scores, 2 * scores * e, 2.5 * scores),
        ),
        found(
            "masked_softmax",
            [random(b, heads, s, s)],
            [hidden, 0.125],
            Cost(2 * scores * e + scores / heads, 6 * scores, 3 * scores * e, 5 * scores),
        ),
        found(
            "attention",
            qkv,
            [None],
            Cost(4 * n * e, core, 8 * n * e, 2.5 * core),
            plain=lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, is_causal=True),
        ),
        found(
            "attention",
            qkv,
            [mask(b * heads)],
            Cost(4 * n * e, core, 8 * n * e, 2.5 * core),
            dropout=True,
        ),
        found(
            "cross_entropy",
            [random(s, b, vocabulary)],
            [targets, 0, vocabulary],
            Cost(logits * e, 6 * logits, 2 * logits * e, 4 * logits),
            plain=lambda x, targets, *_: cross_entropy(x.to(wide).flatten(0, 1), targets.flatten(), reduction="sum"),
        ),
        found(
            "embedding_gradient",
            [],
            [random(vocabulary, h, of=wide, leaf=False), targets, rows],
            Cost(n * (e + 2 * w), n),
        ),
        found(
            "weight_gradient",
            [],
            [flat.view(4 * h, h), rows, random(s, b, 4 * h, leaf=False)],
            Cost((n + f) * e + 2 * weights * w, 2.0 * s * b * weights),
        ),
        found(
            "gradient_norm",
            [],
            [[flat]],
            Cost(weights * w, 2 * weights),
            plain=lambda tensors: torch.stack(torch._foreach_norm(tensors)).square().sum(),
        ),
        found(
            "unscale",
            [],
            [[flat], 0.999],
            Cost(2 * weights * w, weights),
            plain=lambda tensors, factor: torch._foreach_mul_(tensors, factor),
        ),
        found("adamw", [], [*adam, constants], Cost(7 * weights * w, 14 * weights)),
    ]
