"""Bytes of activations that a stage keeps between the forward and the backward pass of one microbatch.

Counted from what each operator keeps for its backward pass, as Korthikanti et al. 2022 (arXiv:2205.05198, section 4)
count for their kernels; here for the kernels of this suite. s sequence length, b sequences in a microbatch, h hidden
size, f feed-forward size, n heads, t tensor-parallel size, e bytes of an element.
"""

from operator import mul

from suite.experiment.pace import BYTES
from suite.experiment.point import Point
from suite.kernels.registry import choose
from suite.measure.flops import padded_vocab
from suite.model.split import layers_of, parts

_STATISTICS = 8  # mean and reciprocal deviation of a layer norm's row, 4 bytes each
_TOKEN = 8


def fused_attention(point: Point) -> bool:
    """Whether the attention core is one operator here, which keeps nothing of size s^2."""
    return choose(point.kernels)["attention"] == "torch" and not point.model.dropout


def half_bytes(point: Point, fused: bool) -> tuple[int, int]:
    """A layer's attention and its feed-forward part, without full recomputation.

    Of each, the norm and the column-parallel layer keep their inputs, 2 s b h e (1/t of it with sequence parallelism),
    and the dropout a byte an element. Of attention the queries, keys and values take 3 s b h e / t, the core what
    `core_bytes` says, unless it is recomputed, and the output projection's input s b h e / t; of the feed-forward part
    GELU and the second layer their inputs, 2 s b f e / t.
    """
    model, tensor = point.model, point.parallel.tensor
    rows = model.seq_length * point.training.microbatch
    element = BYTES[point.training.precision]
    whole = 2 * model.hidden_size * element + _STATISTICS + (model.hidden_size if model.dropout else 0)
    shared = rows * whole // sequence_shares(point)
    core = 0 if point.training.recompute == "selective" else core_bytes(point, fused)
    attention = shared + rows * 4 * model.hidden_size * element // tensor + core
    return attention, shared + rows * 2 * model.ffn_hidden_size * element // tensor


def core_bytes(point: Point, fused: bool) -> int:
    """What the attention core keeps beside queries, keys and values.

    Fused: its output s b h e / t, and 4 s b n / t for the softmax's normalisation (at least fp32). As batched products:
    the probabilities s^2 b n e / t, and with dropout a byte for each and the dropped ones.
    """
    model, b = point.model, point.training.microbatch
    element = BYTES[point.training.precision]
    if fused:
        output = model.seq_length * b * model.hidden_size * element
        return (output + max(4, element) * model.seq_length * b * model.heads) // point.parallel.tensor
    scores = model.seq_length**2 * b * model.heads
    probabilities = scores * (2 * element + 1 if model.dropout else element)
    return probabilities // point.parallel.tensor


def stage_bytes(point: Point, halves: range, first: bool, last: bool, fused: bool) -> int:
    """A stage of these half layers, for one microbatch on one rank; `fused` says whether the attention core is.

    With full recomputation only the input of every `recompute_layers` layers. The first stage has the tokens and the
    embedding's dropout, the last the final norm's input and output and the probabilities s b V / t, at least fp32.
    """
    model, training, tensor = point.model, point.training, point.parallel.tensor
    rows, element = model.seq_length * training.microbatch, BYTES[training.precision]
    hidden = rows * model.hidden_size * element // sequence_shares(point)
    if training.recompute == "full":
        total = -(-len(layers_of(halves)) // training.recompute_layers) * hidden
    else:
        total = sum(map(mul, parts(halves), half_bytes(point, fused)))
    if first and model.dropout:
        total += rows * model.hidden_size // sequence_shares(point)
    if last:
        vocabulary = padded_vocab(model.vocab_size, tensor) // tensor
        total += 2 * hidden + rows * (max(4, element) * vocabulary + _TOKEN + 1)
    return total


def deferred_bytes(point: Point, halves: range, first: bool, last: bool) -> int:
    """What a stage keeps between B and W of one microbatch: inputs and output gradients of all that has weights.

    Of each half of a layer the norm and the row- and column-parallel products have 4 s b h e that tensor parallelism
    does not split (1/t of it with sequence parallelism); of attention 4 s b h e / t that it does, of the feed-forward
    part 2 s b f e / t. The embedding has its gradient s b h e, the head its norm's and its product's input and
    gradient, that of the logits s b V e / t among them.
    """
    model, tensor = point.model, point.parallel.tensor
    rows, element = model.seq_length * point.training.microbatch, BYTES[point.training.precision]
    hidden = rows * model.hidden_size * element // sequence_shares(point)
    attentions, feed_forwards = parts(halves)
    inner = rows * element * (attentions * 4 * model.hidden_size + feed_forwards * 2 * model.ffn_hidden_size) // tensor
    total = len(halves) * 4 * hidden + inner + (hidden if first else 0)
    if last:
        total += 3 * hidden + rows * element * (padded_vocab(model.vocab_size, tensor) // tensor)
    return total


def sequence_shares(point: Point) -> int:
    """Tensor ranks between which what tensor parallelism does not split is divided along the sequence."""
    return point.parallel.tensor if point.parallel.sequence else 1
