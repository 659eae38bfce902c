"""Parameters and training state per pipeline rank, from shapes alone."""

from suite.experiment.point import Model, Point
from suite.measure.flops import padded_vocab
from suite.model.split import layer_split, parts
from suite.pipeline.generators import placement

# bytes of a parameter: its value, its main gradient, and the master weight that a 16-bit value has beside it
_BYTES = {"fp32": (4, 4, 0), "fp64": (8, 8, 0), "bf16": (2, 4, 4), "fp16": (2, 4, 4)}


def half_parameters(model: Model, tensor: int) -> tuple[int, int]:
    """Parameters of a layer's attention and feed-forward part on one tensor rank.

    Each has a norm, and the bias of its row-parallel layer, whole.
    """
    h, f = model.hidden_size, model.ffn_hidden_size
    return (3 * h * h + 3 * h + h * h) // tensor + 3 * h, (h * f + f + f * h) // tensor + 3 * h


def rank_parameters(point: Point) -> list[int]:
    """Parameters that each pipeline rank holds (its share of one tensor rank), in pipeline order.

    A tied embedding counts once on every rank that holds a first or a last stage.
    """
    model, tensor, last = point.model, point.parallel.tensor, point.virtual_stages - 1
    split = layer_split(model, point.virtual_stages, point.schedule.split)
    word = padded_vocab(model.vocab_size, tensor) // tensor * model.hidden_size
    attention, feed_forward = half_parameters(model, tensor)
    counts = [0] * point.parallel.pipeline
    replicas = placement(point.schedule, point.parallel.pipeline)
    for hosts in replicas:
        for stage, rank in enumerate(hosts):
            attentions, feed_forwards = parts(split[stage])
            counts[rank] += attentions * attention + feed_forwards * feed_forward
        counts[hosts[0]] += model.seq_length * model.hidden_size + word
        counts[hosts[last]] += 2 * model.hidden_size + word
    if model.tied_embeddings:
        ends = [hosts[end] for hosts in replicas for end in (0, last)]
        for rank in set(ends):
            counts[rank] -= (ends.count(rank) - 1) * word
    return counts


def state_bytes(point: Point) -> int:
    """Bytes of values, gradients and optimizer state on the fullest rank.

    ZeRO-1 divides the optimizer's part by the number of ranks with the same stage (up to the padding of its buckets),
    ZeRO-3 everything; its values are the optimizer's own, in at least 32 bits.
    """
    value, gradient, master = _BYTES[point.training.precision]
    moments = 2 * gradient if point.training.optimizer == "adamw" else 0
    copies = point.parallel.data * len(placement(point.schedule, point.parallel.pipeline))
    fullest = max(rank_parameters(point))
    if point.parallel.sharding == "zero3":
        return -(-fullest * (2 * gradient + moments) // copies)
    shards = copies if point.parallel.sharding == "zero1" else 1
    return fullest * (value + gradient) + fullest * (master + moments) // shards
