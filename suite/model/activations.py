"""Bytes of activations that a stage keeps between the forward and the backward pass of one microbatch.

Counted from what each operator keeps for its backward pass, as Korthikanti et al. 2022 (arXiv:2205.05198, section 4)
count for their kernels; here for the kernels of this suite. s sequence length, b sequences in a microbatch, h hidden
size, f feed-forward size, n heads, t tensor-parallel size, e bytes of an element.
"""

from suite.experiment.point import Point
from suite.kernels.registry import choose
from suite.measure.flops import padded_vocab

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
_STATISTICS = 8  # mean and reciprocal deviation of a layer norm's row, 4 bytes each
_TOKEN = 8


def layer_bytes(point: Point) -> int:
    """One layer without full recomputation.

    Two norms keep their input, two column-parallel layers theirs: 4 s b h e (1/t of it with sequence parallelism); the
    queries, keys and values 3 s b h e / t; the attention core what `core_bytes` says, unless it is recomputed; the
    output projection's input s b h e / t; GELU and the second feed-forward layer their inputs, 2 s b f e / t; and two
    dropouts a byte an element.
    """
    model, tensor = point.model, point.parallel.tensor
    rows = model.seq_length * point.training.microbatch
    element = ELEMENT_BYTES[point.training.precision]
    whole = 4 * model.hidden_size * element + 2 * _STATISTICS + (2 * model.hidden_size if model.dropout else 0)
    split = (4 * model.hidden_size + 2 * model.ffn_hidden_size) * element
    core = 0 if point.training.recompute == "selective" else core_bytes(point)
    return rows * whole // _sequence_shares(point) + rows * split // tensor + core


def core_bytes(point: Point) -> int:
    """What the attention core keeps beside queries, keys and values.

    Fused: its output s b h e / t, and 4 s b n / t for the softmax's normalisation (at least fp32). As batched products:
    the scaled queries s b h e / t, the probabilities s^2 b n e / t, and with dropout a byte for each and the dropped
    ones.
    """
    model, b = point.model, point.training.microbatch
    element = ELEMENT_BYTES[point.training.precision]
    output = model.seq_length * b * model.hidden_size * element
    if choose(point.kernels)["attention"] == "torch" and not model.dropout:
        return (output + max(4, element) * model.seq_length * b * model.heads) // point.parallel.tensor
    scores = model.seq_length**2 * b * model.heads
    probabilities = scores * (2 * element + 1 if model.dropout else element)
    return (
        output + probabilities
    ) // point.parallel.tensor + model.seq_length**2  # the mask of the future, a byte each


def stage_bytes(point: Point, layers: int, first: bool, last: bool) -> int:
    """A stage of so many layers, for one microbatch on one rank.

    With full recomputation only the input of every `recompute_layers` layers. The first stage has the tokens and the
    embedding's dropout, the last the final norm's input and output and the probabilities s b V / t, at least fp32.
    """
    model, training, tensor = point.model, point.training, point.parallel.tensor
    rows, element = model.seq_length * training.microbatch, ELEMENT_BYTES[training.precision]
    hidden = rows * model.hidden_size * element // _sequence_shares(point)
    if training.recompute == "full":
        total = -(-layers // training.recompute_layers) * hidden
    else:
        total = layers * layer_bytes(point)
    if first and model.dropout:
        total += rows * model.hidden_size // _sequence_shares(point)
    if last:
        vocabulary = padded_vocab(model.vocab_size, tensor) // tensor
        total += 2 * hidden + rows * (max(4, element) * vocabulary + _TOKEN + 1)
    return total


def _sequence_shares(point: Point) -> int:
    return point.parallel.tensor if point.parallel.sequence else 1
