"""apex's adapters on stand-ins with the signatures of its source, computing by torch: what they pass and get back."""

import sys
from types import ModuleType

import pytest
import torch

from suite.kernels.adamw import Hyperparameters
from suite.kernels.dropout_mask import DropoutMask
from suite.kernels.registry import OPERATORS, implementation


def _fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)


class _UpperTriangular:
    """ScaledUpperTriangMaskedSoftmax takes [matrices, s, s]."""

    @staticmethod
    def apply(inputs, scale):
        assert inputs.dim() == 3
        future = torch.ones(inputs.shape[-2:], dtype=torch.bool).triu(1)
        return (inputs * scale).masked_fill(future, -torch.inf).softmax(-1)


class _Masked:
    """ScaledMaskedSoftmax takes [b, heads, s, t] and a mask [b, 1, s, t] that is true where nothing is seen."""

    @staticmethod
    def apply(inputs, mask, scale):
        assert mask.is_contiguous()
        return (inputs * scale).masked_fill(mask, -torch.inf).softmax(-1)


def _multi_tensor_adam(chunk, noop, lists, lr, beta1, beta2, eps, step, mode, bias_correction, weight_decay):
    assert (mode, bias_correction) == (1, 1), "AdamW, with bias correction"
    constants = Hyperparameters(lr, (beta1, beta2), eps, weight_decay)
    for gradients, values, first, second in zip(*lists, strict=True):
        implementation("adamw", "reference")(values, gradients, first, second, step, constants)


def _multi_tensor_l2norm(chunk, noop, lists, per_tensor):
    (tensors,) = lists
    return torch.stack([tensor.norm() for tensor in tensors]).norm().view(1), torch.empty(0)


def _multi_tensor_scale(chunk, noop, lists, scale):
    for one, out in zip(*lists, strict=True):
        out.copy_(one * scale)


def _wgrad_gemm_accum_fp32(total_input, grad_output, main_grad):
    assert total_input.dim() == grad_output.dim() == 2
    main_grad += grad_output.t() @ total_input


@pytest.fixture(autouse=True)
def apex(monkeypatch):
    """apex's modules as far as the adapters import them."""
    contents = {
        "apex": {},
        "apex.normalization": {},
        "apex.normalization.fused_layer_norm": {"fused_layer_norm_affine": _fused_layer_norm_affine},
        "apex.transformer": {},
        "apex.transformer.functional": {},
        "apex.transformer.functional.fused_softmax": {
            "ScaledUpperTriangMaskedSoftmax": _UpperTriangular,
            "ScaledMaskedSoftmax": _Masked,
        },
        "apex.multi_tensor_apply": {
            "multi_tensor_applier": lambda op, noop, lists, *rest: op(65536, noop, lists, *rest)
        },
        "amp_C": {
            "multi_tensor_adam": _multi_tensor_adam,
            "multi_tensor_l2norm": _multi_tensor_l2norm,
            "multi_tensor_scale": _multi_tensor_scale,
        },
        "fused_weight_gradient_mlp_cuda": {"wgrad_gemm_accum_fp32": _wgrad_gemm_accum_fp32},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


def _inputs(operator):
    hidden = torch.rand(2, 1, 4, 4) < 0.4
    hidden[..., 0] = False
    mask = DropoutMask(torch.arange(8, dtype=torch.int32).view(4, 2), 0.3)
    flat = [torch.rand(9) for _ in range(4)]
    return {
        "layer_norm": (torch.randn(3, 2, 5), torch.randn(5), torch.randn(5), 1e-3),
        "causal_softmax": (torch.randn(2, 2, 4, 4), 0.5),
        "masked_softmax": (torch.randn(2, 2, 4, 4), hidden, 0.5),
        "attention": (*(torch.randn(2, 2, 4, 3) for _ in range(3)), mask),
        "weight_gradient": (torch.ones(3, 5), torch.randn(4, 2, 5), torch.randn(4, 2, 3)),
        "gradient_norm": (flat,),
        "unscale": (flat, 0.3),
        "adamw": (*flat, 3, Hyperparameters(1e-2, (0.9, 0.99), 1e-8, 0.1)),
    }[operator]


@pytest.mark.parametrize("operator", [name for name, available in OPERATORS.items() if "apex" in available])
def test_an_adapter_passes_what_apex_takes(operator):
    found = []
    for name in ("apex", "reference"):
        torch.manual_seed(1)
        arguments = _inputs(operator)
        result = implementation(operator, name)(*arguments)
        tensors = [one for part in arguments for one in (part if isinstance(part, list) else [part])]
        found.append([result, *(one for one in tensors if isinstance(one, torch.Tensor))])
    for mine, expected in zip(*found, strict=True):
        if expected is not None:
            torch.testing.assert_close(mine, expected, check_dtype=False, rtol=1e-5, atol=1e-6)
