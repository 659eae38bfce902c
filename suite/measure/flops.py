"""Floating-point operations of one training iteration, and parameters, as closed formulas.

A multiplication and an addition count as one operation each, so an (a, b) by (b, c) product is 2abc. Only
matrix products count, as in the paper (Narayanan et al., SC '21, section 5.1 and appendix "Floating-point
operations"): h hidden size, f feed-forward size, l layers, s sequence length, V vocabulary, B sequences per
iteration. All results are exact integers, and none depends on the pipeline, the microbatch or the schedule.
"""

from typing import Literal

from suite.experiment.point import Model

FLOPS_VERSION = 1
TRAINING_TOKENS = 300e9  # the paper's GPT-3 example, section 5.1
Recompute = Literal["none", "selective", "full"]


def padded_vocab(vocab: int, tensor: int) -> int:
    """Rows of the embedding as multiplied: the next multiple of 128 * tensor, as the paper's scripts pad."""
    multiple = 128 * tensor
    return (vocab + multiple - 1) // multiple * multiple


def attention_core_flops(model: Model, batch: int) -> int:
    """FLOPs of one forward pass of all layers' attention cores, 4 B s^2 h l.

    These are the products of queries with keys and of probabilities with values, every position with every
    position: the paper counts the masked half too.
    """
    return 4 * batch * model.seq_length**2 * model.hidden_size * model.layers


def layers_flops(model: Model, batch: int) -> int:
    """FLOPs of one forward pass of all layers, B s l (8 h^2 + 4 h f + 4 s h).

    Of the first term 6 h^2 are queries, keys and values and 2 h^2 the output projection; 4 h f are the two
    feed-forward products. With f = 4h it is the paper's 24 B s h^2 + 4 B s^2 h per layer.
    """
    h, f = model.hidden_size, model.ffn_hidden_size
    projections = batch * model.seq_length * model.layers * (8 * h * h + 4 * h * f)
    return projections + attention_core_flops(model, batch)


def logits_flops(model: Model, batch: int, vocab: int) -> int:
    """FLOPs of one forward pass of the output layer over `vocab` entries, 2 B s h V."""
    return 2 * batch * model.seq_length * model.hidden_size * vocab


def model_flops(model: Model, batch: int) -> int:
    """FLOPs that one iteration of the model needs, 3 [B s l (8 h^2 + 4 h f + 4 s h) + 2 B s h V].

    V is the declared vocabulary, the backward pass is twice the forward pass, and nothing is recomputed:
    the number depends on the model and the batch alone. With f = 4h it is
    72 B s l h^2 (1 + s/(6h) + V/(12 l h)).
    """
    return 3 * (layers_flops(model, batch) + logits_flops(model, batch, model.vocab_size))


def causal_model_flops(model: Model, batch: int) -> int:
    """`model_flops` with half of the attention core, what a causal mask leaves to do.

    Some tools report this number; it stands in a column of its own name and enters no percentage.
    """
    return model_flops(model, batch) - 3 * attention_core_flops(model, batch) // 2


def hardware_flops(model: Model, batch: int, tensor: int, recompute: Recompute) -> int:
    """FLOPs that one iteration executes: those of the model with the padded vocabulary, and recomputation.

    `full` recomputation runs one more forward pass of the layers, not of the logits; `selective` runs the
    attention cores once more, 4 B s^2 h l. With f = 4h, a vocabulary that needs no padding and `full` it is
    the paper's equation 3.
    """
    padding = padded_vocab(model.vocab_size, tensor) - model.vocab_size
    return counted_flops(model, batch, recompute) + 3 * logits_flops(model, batch, padding)


def paper_flops(model: Model, batch: int) -> int:
    """FLOPs per iteration by the paper's equation 3, 96 B s l h^2 (1 + s/(6h) + V/(16 l h)).

    It holds for f = 4h and full recomputation, whatever the model says.
    """
    s, layers, h, vocab = model.seq_length, model.layers, model.hidden_size, model.vocab_size
    return 96 * batch * s * layers * h * h + 16 * batch * s * s * layers * h + 6 * batch * s * h * vocab


def paper_parameters(model: Model) -> int:
    """Parameters by the paper's equation 2, 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h)).

    It holds for f = 4h and tied embeddings, and leaves out the last layer norm's 2h.
    """
    layers, h = model.layers, model.hidden_size
    return 12 * layers * h * h + 13 * layers * h + (model.vocab_size + model.seq_length) * h


def parameters(model: Model) -> int:
    """Parameters of the model, exactly, each counted once and without the padding of the vocabulary.

    Per layer 4 h^2 + 4 h of attention, 2 h f + f + h of feed-forward and 4 h of layer norms; one more layer
    norm, learned positions, and the token embedding, twice where the output layer is not tied to it.
    """
    h, f = model.hidden_size, model.ffn_hidden_size
    layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h
    embeddings = model.vocab_size * (1 if model.tied_embeddings else 2) + model.seq_length
    return model.layers * layer + 2 * h + embeddings * h


def counted_flops(model: Model, batch: int, recompute: Recompute) -> int:
    """FLOPs per iteration as papers count them: executed ones, with the declared vocabulary.

    With full recomputation and f = 4h it is the paper's equation 3. It differs from `hardware_flops` where the
    vocabulary is padded for tensor parallelism: by at most 0.1% in the paper's configurations.
    """
    once_more = {"none": 0, "selective": attention_core_flops(model, batch), "full": layers_flops(model, batch)}
    return model_flops(model, batch) + once_more[recompute]
