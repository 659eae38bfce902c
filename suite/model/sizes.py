"""Parameters and training state per pipeline rank, from shapes alone."""

from suite.experiment.point import Model, Point
from suite.measure.flops import padded_vocab
from suite.model.split import layer_split

# bytes of a parameter: its value, its main gradient, and the master weight that a 16-bit value has beside it
_BYTES = {"fp32": (4, 4, 0), "fp64": (8, 8, 0), "bf16": (2, 4, 4), "fp16": (2, 4, 4)}


def layer_parameters(model: Model, tensor: int) -> int:
    """Parameters of one layer on one tensor rank."""
    h, f = model.hidden_size, model.ffn_hidden_size
    sharded = 3 * h * h + 3 * h + h * h + h * f + f + f * h
    whole = 4 * h + 2 * h  # two norms; the biases of the two row-parallel layers
    return sharded // tensor + whole


def rank_parameters(point: Point) -> list[int]:
    """Parameters that each pipeline rank holds (its share of one tensor rank), in pipeline order.

    A tied embedding counts on the first and on the last stage's rank; once where that is the same rank.
    """
    model, tensor, ranks = point.model, point.parallel.tensor, point.parallel.pipeline
    split = layer_split(model, point.virtual_stages, point.schedule.split)
    word = padded_vocab(model.vocab_size, tensor) // tensor * model.hidden_size
    counts = [
        sum(len(layers) for layers in split[rank::ranks]) * layer_parameters(model, tensor) for rank in range(ranks)
    ]
    counts[0] += word + model.seq_length * model.hidden_size
    last = (point.virtual_stages - 1) % ranks
    counts[last] += 2 * model.hidden_size
    if last != 0 or not model.tied_embeddings:
        counts[last] += word
    return counts


def state_bytes(point: Point) -> int:
    """Bytes of values, gradients and optimizer state on the fullest rank.

    ZeRO-1 divides the optimizer's part by the data-parallel size (up to the padding of its buckets).
    """
    value, gradient, master = _BYTES[point.training.precision]
    moments = 2 * gradient if point.training.optimizer == "adamw" else 0
    shards = point.parallel.data if point.parallel.sharding == "zero1" else 1
    return max(rank_parameters(point)) * (value + gradient) + max(rank_parameters(point)) * (master + moments) // shards
