"""The model's operators by name, each with a reference that states the mathematics and faster forms of the same.

The operators themselves are imported by `select`, so that reading an experiment needs no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# operator -> its implementations, the one that `auto` takes first
OPERATORS: dict[str, tuple[str, ...]] = {
    "layer_norm": ("torch", "reference"),
    "bias_gelu": ("torch", "reference"),
    "attention": ("torch", "reference"),
    "adamw": ("torch", "reference"),
}


@dataclass(frozen=True)
class Kernels:
    """The chosen implementation of every operator, and its name for the record."""

    layer_norm: Callable[..., Any]
    bias_gelu: Callable[..., Any]
    attention: Callable[..., Any]
    adamw: Callable[..., Any]
    names: dict[str, str]


def choose(choice: str | Mapping[str, str]) -> dict[str, str]:
    """The implementation's name for every operator.

    `choice` is one name for all operators or a name for some of them; the others take `auto`.

    Raises:
        ValueError: an operator or an implementation that does not exist.
    """
    wanted = dict.fromkeys(OPERATORS, choice) if isinstance(choice, str) else dict(choice)
    unknown = [operator for operator in wanted if operator not in OPERATORS]
    if unknown:
        raise ValueError(f"kernels: there is no operator {unknown[0]!r}; there are {', '.join(OPERATORS)}")
    names = {}
    for operator, available in OPERATORS.items():
        name = wanted.get(operator, "auto")
        if name not in ("auto", *available):
            raise ValueError(f"kernels: {operator} has no {name!r} implementation; it has {', '.join(available)}")
        names[operator] = available[0] if name == "auto" else name
    return names


def select(choice: str | Mapping[str, str]) -> Kernels:
    """Import the chosen implementations.

    Raises:
        ValueError: as `choose`.
    """
    names = choose(choice)
    functions = {
        operator: getattr(import_module(f"suite.kernels.{operator}"), name) for operator, name in names.items()
    }
    return Kernels(**functions, names=names)
