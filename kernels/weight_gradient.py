"""A linear layer's weight gradient added to the main one: main += dY^T X; main [out, in], X [..., in], dY [..., out].

`main` has at least 32 bits. Fused, the product adds to it, and no gradient of the weight's size is made or read.
"""

from functools import cache

import torch as _torch


def reference(main: _torch.Tensor, x: _torch.Tensor, grad: _torch.Tensor) -> None:
    """The product, and then the sum, as automatic differentiation does it."""
    main.add_(_torch.matmul(grad.flatten(0, -2).t(), x.flatten(0, -2)))


@cache
def _adds_in_32_bits(dtype: _torch.dtype) -> bool:
    """Whether torch's product of 16-bit operands adds to what has 32; earlier versions want both alike."""
    ones = _torch.ones(16, 16, dtype=dtype, device="cuda")
    try:
        _torch.addmm(ones.float(), ones, ones, out_dtype=_torch.float32)
    except RuntimeError:
        return False
    return True


def torch(main: _torch.Tensor, x: _torch.Tensor, grad: _torch.Tensor) -> None:
    """In the product itself."""
    rows, columns = grad.flatten(0, -2).t(), x.flatten(0, -2)
    if x.dtype == main.dtype:
        main.addmm_(rows, columns)
    elif x.is_cuda and _adds_in_32_bits(x.dtype):
        _torch.addmm(main, rows, columns, out_dtype=main.dtype, out=main)
    elif x.is_cuda:
        main.add_(_torch.mm(rows, columns, out_dtype=main.dtype))
    else:  # a processor has no product of 16 bits with a sum in 32: the operands are widened, not the weight's gradient
        main.addmm_(rows.to(main.dtype), columns.to(main.dtype))


def apex(main: _torch.Tensor, x: _torch.Tensor, grad: _torch.Tensor) -> None:
    """By apex's fused_weight_gradient_mlp_cuda, Megatron's gradient accumulation fusion."""
    from fused_weight_gradient_mlp_cuda import wgrad_gemm_accum_fp32

    wgrad_gemm_accum_fp32(x.flatten(0, -2).contiguous(), grad.flatten(0, -2).contiguous(), main)
