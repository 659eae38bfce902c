"""Bias, dropout and residual sum: residual + dropout(x + bias); x and residual [s, b, h], bias [h] (paper section 4.2).

`mask` has a block for each of the b sequences; None drops nothing.
"""

import torch as _torch

from suite.kernels.dropout_mask import DropoutMask, kept_of_rows


def reference(
    x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None
) -> _torch.Tensor:
    """Each step by itself."""
    y = x + bias
    if mask is not None:
        y = y * kept_of_rows(mask, x.shape) * mask.scale
    return residual + y


def torch(x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """With as few passes as torch's operators allow, of which autograd keeps a byte an element."""
    if mask is None:
        return (x + bias).add_(residual)
    return _torch.add(residual, (x + bias) * kept_of_rows(mask, x.shape), alpha=mask.scale)


def triton(x: _torch.Tensor, bias: _torch.Tensor, residual: _torch.Tensor, mask: DropoutMask | None) -> _torch.Tensor:
    """In one pass that draws the mask itself, forward and again backward, so that no mask is kept."""
    from suite.kernels.bias_dropout_add_triton import added

    return added(x, bias, residual, mask)
