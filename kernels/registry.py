"""The model's operators by name, each with a reference that states the mathematics and faster forms of the same.

The operators themselves are imported by `select`, so that reading an experiment needs no torch.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

Device = Literal["cpu", "cuda"]

_ALL = ("reference", "torch", "triton", "apex")
_NO_APEX = ("reference", "torch", "triton")

# operator -> its implementations
OPERATORS: dict[str, tuple[str, ...]] = {
    "layer_norm": _ALL,
    "residual_layer_norm": _NO_APEX,
    "bias_gelu": _NO_APEX,
    "bias_dropout_add": _NO_APEX,
    "causal_softmax": _ALL,
    "masked_softmax": _ALL,
    "attention": _ALL,
    "cross_entropy": _NO_APEX,
    "embedding_gradient": _NO_APEX,
    "weight_gradient": ("reference", "torch", "apex"),
    "gradient_norm": _ALL,
    "unscale": _ALL,
    "adamw": _ALL,
}

# What `auto` looks for, in this order, where ranks compute on a GPU. On a processor it takes torch's.
_ON_A_GPU = ("triton", "apex", "torch")
_TORCH_FIRST = ("attention", "gradient_norm")  # on a GPU too: flash attention; one launch for many tensors

_HOW = {
    "triton": "pip install triton",
    "apex": "build it from NVIDIA's source, https://github.com/NVIDIA/apex, with its C++ and CUDA extensions; "
    "the package of that name on PyPI is another project",
}


@dataclass(frozen=True)
class Kernels:
    """The chosen implementation of every operator, and its name for the record."""

    layer_norm: Callable[..., Any]
    residual_layer_norm: Callable[..., Any]
    bias_gelu: Callable[..., Any]
    bias_dropout_add: Callable[..., Any]
    causal_softmax: Callable[..., Any]
    masked_softmax: Callable[..., Any]
    attention: Callable[..., Any]
    cross_entropy: Callable[..., Any]
    embedding_gradient: Callable[..., Any]
    weight_gradient: Callable[..., Any]
    gradient_norm: Callable[..., Any]
    unscale: Callable[..., Any]
    adamw: Callable[..., Any]
    names: dict[str, str]


assert [field.name for field in fields(Kernels)] == [*OPERATORS, "names"]


def choose(choice: str | Mapping[str, str], device: Device = "cpu", dropout: bool = False) -> dict[str, str]:
    """The implementation's name for every operator.

    `choice` is one name for all operators or a name for some of them; the others take `auto`. One name for all is taken
    where an operator has it, and `auto` elsewhere: apex has no bias and GELU. `dropout`: whether attention drops.

    Raises:
        ValueError: an operator or an implementation that does not exist.
    """
    if isinstance(choice, str):
        if choice not in ("auto", *_ALL):
            raise ValueError(f"kernels: there is no set {choice!r}; there are auto, {', '.join(_ALL)}")
        wanted = {operator: choice for operator, available in OPERATORS.items() if choice in available}
    else:
        wanted = dict(choice)
    unknown = [operator for operator in wanted if operator not in OPERATORS]
    if unknown:
        raise ValueError(f"kernels: there is no operator {unknown[0]!r}; there are {', '.join(OPERATORS)}")
    names = {}
    for operator, available in OPERATORS.items():
        name = wanted.get(operator, "auto")
        if name not in ("auto", *available):
            raise ValueError(f"kernels: {operator} has no {name!r} implementation; it has {', '.join(available)}")
        names[operator] = _automatic(operator, device, dropout) if name == "auto" else name
    return names


def _automatic(operator: str, device: Device, dropout: bool) -> str:
    """On a GPU the first that is there: fused attention where nothing is dropped, else what moves the fewest bytes."""
    if device == "cpu" or (operator in _TORCH_FIRST and not (operator == "attention" and dropout)):
        return "torch"
    return next(name for name in _ON_A_GPU if name in OPERATORS[operator] and _absent(name, device) is None)


def problem(choice: str | Mapping[str, str], device: Device) -> str | None:
    """Why the implementations asked for are not there on a device, and how to get them; None where they are.

    What nobody asked for by its name is never missing: `auto` takes what is there.
    """
    asked = [choice] if isinstance(choice, str) else list(choice.values())
    for name in sorted(set(asked) & set(_HOW)):
        if (why := _absent(name, device)) is not None:
            return why
    return None


def _absent(name: str, device: Device) -> str | None:
    """Why an implementation cannot run; None where it can."""
    if name not in _HOW:
        return None
    if not _installed(name):
        return f"{name} is not installed; {_HOW[name]}"
    interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device == "cpu" and not interpreted:
        return f"{name}'s kernels run on a GPU, and the ranks compute on the CPU"
    return None


def _installed(name: str) -> bool:
    """Whether a package is there; of apex only NVIDIA's counts, which is known by what PyPI's does not have."""
    spec = find_spec(name)
    if spec is None or name != "apex":
        return spec is not None
    return any((Path(folder) / "multi_tensor_apply").is_dir() for folder in spec.submodule_search_locations or ())


def select(choice: str | Mapping[str, str], device: Device = "cpu", dropout: bool = False) -> Kernels:
    """Import the chosen implementations.

    Raises:
        ValueError: as `choose`, or one that was asked for is not there.
    """
    names = choose(choice, device, dropout)
    if (why := problem(choice, device)) is not None:
        raise ValueError(f"kernels: {why}")
    return Kernels(**{operator: implementation(operator, name) for operator, name in names.items()}, names=names)


def implementation(operator: str, name: str) -> Callable[..., Any]:
    """One implementation of one operator. Triton's kernels lie beside the operator, in `<operator>_triton`."""
    function: Callable[..., Any] = getattr(import_module(f"suite.kernels.{operator}"), name)
    return function
