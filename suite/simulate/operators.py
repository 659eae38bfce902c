"""What one microbatch takes in a layer, in the embedding and in the head, on one rank.

Counted from the operators of the paper's sections 2.3 and 4.2: b sequences of s tokens, hidden size h, a heads,
feed-forward size f, tensor-parallel size t. Matrix products are charged by their shape, element-wise kernels by the
bytes an element that they read and write, and what is not split by tensor parallelism is paid by every tensor rank.
Every product of the forward pass has two in the backward pass: its input's gradient (in B) and its weight's (in W).
"""

from dataclasses import dataclass, replace
from typing import Self

from suite.experiment.hardware import Hardware
from suite.experiment.pace import BYTES
from suite.experiment.point import Point
from suite.kernels.registry import choose
from suite.measure.flops import padded_vocab
from suite.model.sizes import rank_parameters
from suite.simulate.gemm import gemm_seconds
from suite.simulate.network import all_gather, all_reduce, group
from suite.simulate.spent import NOTHING, Spent

# Kernels of one layer's forward pass, plain and fused. Norms and products, which are not fused, are with attention's.
_KERNELS = {"bias_gelu": (2, 1), "bias_dropout_add": (6, 2), "attention": (18, 13)}
_FUSED_SETS = ("triton", "apex")
_EMBEDDING_KERNELS, _HEAD_KERNELS = 5, 18
_MASK_KERNELS = 20  # of a dropout mask that its kernel does not draw by the way
_LAYER_MASKS, _EMBEDDING_MASKS = 3, 1


@dataclass(frozen=True)
class Passes:
    """One microbatch's forward pass, input gradient and weight gradient."""

    forward: Spent = NOTHING
    input_gradient: Spent = NOTHING
    weight_gradient: Spent = NOTHING

    def __add__(self, other: Self) -> "Passes":
        return Passes(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )

    @property
    def seconds(self) -> float:
        """All three together."""
        return self.forward.seconds + self.input_gradient.seconds + self.weight_gradient.seconds

    def __mul__(self, factor: float) -> "Passes":
        return Passes(self.forward * factor, self.input_gradient * factor, self.weight_gradient * factor)


class Operators:
    """The operators of one point on one device."""

    fused_softmax_heads = 4  # heads x sequences that the fused softmax kernel takes at a time; other numbers fall back

    def __init__(self, point: Point, hardware: Hardware) -> None:
        self.point, self.hardware, self.device = point, hardware, hardware.device
        self.element = BYTES[point.training.precision]
        self.peak = self.device.peak[point.training.precision]
        self.tensor = point.parallel.tensor
        self.rows = point.model.seq_length * point.training.microbatch
        self.whole = self.rows // self.tensor if point.parallel.sequence else self.rows  # of what t does not split
        self.group = group(point.parallel, "tensor", hardware.node_devices)
        self.chosen = choose(point.kernels)
        self.mask = 1 if point.model.dropout else 0  # bytes
        # Weights and their gradients take turns in the caches, where those count.
        self.resident = 2 * self.element * max(rank_parameters(point)) if self.device.streams else 0

    def layer(self) -> Passes:
        """One layer without recomputation."""
        h, f, t = self.point.model.hidden_size, self.point.model.ffn_hidden_size, self.tensor
        products = self.linear(h, 3 * h // t) + self.linear(h // t, h) + self.linear(h, f // t) + self.linear(f // t, h)
        ahead, behind = self._elementwise()
        exchange = 2 * self.exchange()
        hidden = products.weight_gradient.gemm / 2 if self.hardware.software.overlap_tensor else 0.0
        passes = products + Passes(
            Spent(elementwise=ahead, tensor_communication=exchange),
            Spent(elementwise=behind, tensor_communication=max(0.0, exchange - hidden)),
        )
        # What a stack waits for the host at every layer: a third forward, the rest backward.
        waits = self.hardware.software.layer_seconds
        waiting = Passes(Spent(launch=waits / 3), Spent(launch=2 * waits / 3))
        kernels = sum(counts[self._fused(operator)] for operator, counts in _KERNELS.items())
        return self._launched(passes + self.core(), kernels, _LAYER_MASKS) + waiting

    def halves(self) -> tuple[Passes, Passes]:
        """A layer's attention and its feed-forward part.

        What is beside the products and the core belongs to them in the same proportion.
        """
        h, f, t = self.point.model.hidden_size, self.point.model.ffn_hidden_size, self.tensor
        attention = self.linear(h, 3 * h // t) + self.linear(h // t, h) + self.core()
        feed_forward = self.linear(h, f // t) + self.linear(f // t, h)
        share = attention.seconds / (attention.seconds + feed_forward.seconds)
        layer = self.layer()
        return layer * share, layer * (1.0 - share)

    def linear(self, inputs: int, outputs: int) -> Passes:
        """A linear layer of this rank without its bias; its weight's gradient is added to those before."""
        software, e = self.hardware.software, self.element
        accumulated = software.gradient_bytes if e == 2 else e
        inside = software.fused_accumulation and self.chosen["weight_gradient"] != "reference"
        size = accumulated if inside else e + 2 * accumulated
        weights = inputs * outputs
        added = self._moved(weights, size, resident=self.resident)
        return Passes(
            Spent(gemm=self._product(self.rows, outputs, inputs, weights=weights)),
            Spent(gemm=self._product(self.rows, inputs, outputs, weights=weights)),
            Spent(gemm=self._product(inputs, outputs, self.rows, weights=weights), elementwise=added),
        )

    def core(self) -> Passes:
        """The attention core: scores, softmax, dropout and the weighted values, in batched products over heads."""
        model, e, software = self.point.model, self.element, self.hardware.software
        s, width = model.seq_length, model.hidden_size // model.heads
        batch = self.point.training.microbatch * model.heads // self.tensor
        if (
            software.flash_attention
            and self.chosen["attention"] != "reference"
            and (software.flash_dropout or not self.mask)
        ):
            flops = 2 * batch * s * s * width  # two products, of which the mask leaves half
            forward = flops / (self.peak * self.device.flash_efficiency) + self._functions(batch * s * s / 2)
            forward += batch * s * self.device.flash_row_seconds
            return Passes(Spent(attention=forward), Spent(attention=self.device.flash_backward * forward))
        fused = self._fused("attention") and batch % self.fused_softmax_heads == 0
        # Unfused: to fp32, scaled, masked, softmax, back; the gradient the same way.
        softmax, gradient = (2 * e, 3 * e) if fused else (30 + 2 * e, 20 + 3 * e)
        kernels = 1 if fused else 5
        dropout = self._streamed(batch * s * s, 2 * e + 1) if self.mask else 0.0
        drawn = self._drawn(batch * s * s) + self._functions(batch * s * s)
        products = self._product(s, s, width, batch) + self._product(s, width, s, batch)
        ahead = products + self._streamed(batch * s * s, softmax, kernels) + dropout + drawn
        behind = 2 * products + self._streamed(batch * s * s, gradient, kernels) + dropout
        return Passes(Spent(attention=ahead), Spent(attention=behind))

    def embedding(self) -> Passes:
        """Token and position embedding with dropout, on the first stage."""
        h, e = self.point.model.hidden_size, self.element
        rows, vocabulary = self.rows * h, self._vocabulary()
        accumulated = self.hardware.software.gradient_bytes if e == 2 else e
        ahead = self._moved(rows, 7 * e + self.mask, 4) + self._drawn(rows)
        weights = self._moved(rows, 4 * e)
        if not self.hardware.software.added_rows or self.chosen["embedding_gradient"] == "reference":
            weights += self._moved(vocabulary * h, 2 * e + 2 * accumulated)
        exchange = all_reduce(self.hardware, self.group, e * rows)
        passes = Passes(
            Spent(elementwise=ahead, tensor_communication=exchange),
            Spent(elementwise=self._moved(rows, 3 * e + self.mask, 2)),
            Spent(elementwise=weights),
        )
        return self._launched(passes, _EMBEDDING_KERNELS, _EMBEDDING_MASKS)

    def head(self) -> Passes:
        """Final norm, logits and cross entropy over this rank's share of the vocabulary, on the last stage."""
        h, e, vocabulary = self.point.model.hidden_size, self.element, self._vocabulary()
        logits = self.rows * vocabulary
        # In fp32: converted, maximum, difference, exponential, sum, quotient; the gradient made from it and converted.
        ahead = self._moved(logits, e + 36, 6) + self._moved(self.whole * h, 2 * e) + self._functions(logits)
        behind = self._moved(logits, e + 20, 3) + self._moved(self.whole * h, 5 * e)
        reductions = self.hardware.software.loss_reductions * all_reduce(self.hardware, self.group, 4 * self.rows)
        passes = Passes(
            Spent(elementwise=ahead, tensor_communication=reductions),
            Spent(elementwise=behind, tensor_communication=self.exchange()),
        )
        return self._launched(self.linear(h, vocabulary) + passes, _HEAD_KERNELS)

    def action(self) -> Passes:
        """What every action of the program begins with: the host's start, and forward the tokens for all tensor ranks.

        One rank has read them; of their broadcasts nothing but the start counts.
        """
        tokens = self.hardware.software.token_broadcasts * all_gather(self.hardware, self.group, 8 * self.rows)
        started = Spent(launch=self.device.action_seconds + self.hardware.software.action_seconds)
        return Passes(started + Spent(tensor_communication=tokens), started)

    def exchange(self) -> float:
        """Seconds of one exchange between tensor ranks: an all-reduce, or with sequence parallelism its two halves."""
        size = self.element * self.rows * self.point.model.hidden_size
        if self.point.parallel.sequence:
            return 2 * all_gather(self.hardware, self.group, size)
        return all_reduce(self.hardware, self.group, size)

    def _elementwise(self) -> tuple[float, float]:
        """Seconds of a layer's norms, biases, GELU, dropouts and residual sums: forward, backward."""
        model, e, mask = self.point.model, self.element, self.mask
        wide, split = self.whole * model.hidden_size, self.rows * model.ffn_hidden_size / self.tensor
        queries = self.rows * 3 * model.hidden_size / self.tensor
        gelu = (2 * e, 1) if self._fused("bias_gelu") else (4 * e, 2)
        residual = (3 * e + mask, 1) if self._fused("bias_dropout_add") else (7 * e + mask, 2)
        ahead = self._moved(split, *gelu) + 2 * self._moved(wide, *residual)
        ahead += 2 * self._moved(wide, 2 * e) + self._moved(queries, 2 * e)
        ahead += 2 * self._drawn(wide) + self._functions(split, 2)
        behind = self._moved(split, 3 * e) + self._functions(split, 2) + 2 * self._moved(wide, 2 * e + mask)
        # Norms read input and gradient twice, for the input and for their weights; residual sums; biases' gradients.
        behind += 2 * self._moved(wide, 5 * e, 2) + 2 * self._moved(wide, 3 * e)
        behind += self._moved(queries + split + 2 * wide, e, 4)
        return ahead, behind

    def _fused(self, operator: str) -> bool:
        """Whether an operator is one kernel: by the stack, or because the point asks for such a one."""
        name = self.chosen[operator]
        return name in _FUSED_SETS or (self.hardware.software.fused and name != "reference")

    def _launched(self, passes: Passes, kernels: int, masks: int = 0) -> Passes:
        """Adds what the host needs beyond the device's time, for so many kernels forward, and for the backward pass.

        `masks` may have to be drawn before. A serial device is its own host: it needs all of it.
        """
        host = kernels * self.device.launch_seconds
        drawn = masks * _MASK_KERNELS * self.device.launch_seconds if self.mask and self.device.mask_seconds else 0.0
        hides = 0.0 if self.device.serial else 1.0
        back = passes.input_gradient.seconds + passes.weight_gradient.seconds
        ahead = max(0.0, host + drawn - hides * passes.forward.seconds)
        behind = max(0.0, self.device.backward_launches * host - hides * back)
        return Passes(
            replace(passes.forward, launch=ahead),
            replace(passes.input_gradient, launch=behind / 2),
            replace(passes.weight_gradient, launch=behind / 2),
        )

    def _vocabulary(self) -> int:
        return padded_vocab(self.point.model.vocab_size, self.tensor) // self.tensor

    def _product(self, rows: int, columns: int, depth: int, batch: int = 1, weights: int = 0) -> float:
        """Seconds of products, of which one operand, or the result, are this many weights."""
        cold = self.element * weights if self.resident else 0.0
        return gemm_seconds(
            self.device, self.peak, self.element, rows, columns, depth, batch, cold=cold, resident=self.resident
        )

    def _moved(self, elements: float, size: float, kernels: int = 1, resident: float = 0.0) -> float:
        """Seconds of element-wise kernels that read and write `size` bytes an element between them.

        They take turns in the caches with `resident` bytes.
        """
        device = self.device
        rate = device.bandwidth(max(resident, elements * size / kernels)) * device.memory_efficiency
        return kernels * device.kernel_seconds + elements * size / rate

    def _streamed(self, elements: float, size: float, kernels: int = 1) -> float:
        """The same for the kernels between the attention core's products."""
        device = self.device
        rate = device.bandwidth(elements * size / kernels) * device.attention_efficiency
        return kernels * device.kernel_seconds + elements * size / rate

    def _functions(self, elements: float, exponentials: int = 1) -> float:
        """Seconds of so many exponentials of every element."""
        return elements * exponentials * self.device.function_seconds

    def _drawn(self, elements: float) -> float:
        """Seconds to draw a dropout mask."""
        return elements * self.device.mask_seconds if self.mask else 0.0
