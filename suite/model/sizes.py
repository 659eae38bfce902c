"""Parameters and training state per pipeline rank, from shapes alone."""

from suite.experiment.point import Model, Point
from suite.measure.flops import padded_vocab
from suite.model.split import layer_split

_BYTES = {"fp32": 4, "fp64": 8}  # of a parameter, a gradient, or one optimizer moment


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
    split = layer_split(model.layers, point.virtual_stages, point.schedule.split)
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


def state_bytes(point: Point) -> int | None:
    """Bytes of values, gradients and optimizer state on the fullest rank; None for a precision not known here."""
    size = _BYTES.get(point.training.precision)
    if size is None:
        return None
    copies = 4 if point.training.optimizer == "adamw" else 2
    return max(rank_parameters(point)) * size * copies
