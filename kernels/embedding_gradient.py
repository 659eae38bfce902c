"""The gradient of looked-up rows added to the embedding's: main[indices[i]] += rows[i]; main [V, h], rows [..., h].

GPT-2's and the paper's positions are learned, so there is no rotary part. `main` has at least 32 bits.
"""

import torch as _torch


def reference(main: _torch.Tensor, indices: _torch.Tensor, rows: _torch.Tensor) -> None:
    """A dense gradient, as automatic differentiation makes it, which is then added."""
    dense = _torch.zeros_like(main)
    dense.index_add_(0, indices.flatten(), rows.flatten(0, -2).to(main.dtype))
    main.add_(dense)


def torch(main: _torch.Tensor, indices: _torch.Tensor, rows: _torch.Tensor) -> None:
    """Straight into the gradient."""
    main.index_add_(0, indices.flatten(), rows.flatten(0, -2).to(main.dtype))


def triton(main: _torch.Tensor, indices: _torch.Tensor, rows: _torch.Tensor) -> None:
    """The same, token by token in sorted order, so that two runs add in the same order and give the same bits."""
    from suite.kernels.embedding_gradient_triton import add_rows

    add_rows(main, indices, rows)
