"""How far an implementation is from its reference, computed in fp64 on the inputs that the implementation gets.

    python -m suite.kernels.parity [--device cpu|cuda]

goes over every operator, implementation and type that is here, at sizes that fill no block, and fails if one is further
off than a few roundings.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from suite.kernels.cases import Case, Sizes, cases
from suite.kernels.registry import OPERATORS, Device, implementation, problem

ROUNDOFF = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LIMIT = 8.0  # roundings
SIZES = (Sizes(24, 3, 36, 3, 67), Sizes(64, 4, 320, 4, 1500))


def roundings(
    operator: str, name: str, dtype: torch.dtype, leaves: Sequence[torch.Tensor], constants: Sequence[Any]
) -> float:
    """The largest difference of a result or a gradient, in roundings of `dtype` at the size of what is compared."""
    inputs = [leaf.detach().to(dtype) for leaf in leaves]
    found = _outcome(implementation(operator, name), inputs, constants)
    expected = _outcome(implementation(operator, "reference"), [leaf.double() for leaf in inputs], _widened(constants))
    off = 0.0
    for one, other in zip(found, expected, strict=True):
        scale = ROUNDOFF[dtype] * (1.0 + other.abs().max().item())
        difference = (one.double() - other).abs().max().item()
        off = max(off, difference / scale if difference == difference else float("inf"))
    return off


def _outcome(
    function: Callable[..., Any], leaves: Sequence[torch.Tensor], constants: Sequence[Any]
) -> list[torch.Tensor]:
    """Results and gradients; of what works in place, also all that it may have changed."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    constants = tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, list(constants))
    result = function(*leaves, *constants)
    results = list(result) if isinstance(result, tuple) else [] if result is None else [result]
    if not leaves:
        changed: list[torch.Tensor] = []
        tree_map(lambda one: changed.append(one) if _is_real(one) else None, constants)
        return results + changed
    weights = [_spread(one) for one in results]
    return [*(one.detach() for one in results), *torch.autograd.grad(results, leaves, weights)]


def _spread(like: torch.Tensor) -> torch.Tensor:
    """Numbers between -1 and 1 that have no pattern, the same on every device and in every type to its roundings."""
    places = torch.arange(like.numel(), dtype=torch.float64, device=like.device)
    return (places * 12.9898).sin().to(torch.bfloat16).to(like.dtype).view_as(like)


def _is_real(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point()


def _widened(constants: Sequence[Any]) -> list[Any]:
    widened: list[Any] = tree_map(lambda one: one.double() if _is_real(one) else one, list(constants))
    return widened


def everything(device: Device) -> Iterator[tuple[Case, str, torch.dtype, float]]:
    """Every case with every implementation and type that is here, and how far it is off."""
    for dtype in (torch.float32, torch.bfloat16):
        for sizes in SIZES:
            for case in cases(sizes, dtype, torch.device(device)):
                for name in OPERATORS[case.operator]:
                    if name == "reference" or problem({case.operator: name}, device) is not None:
                        continue
                    if name == "apex" and not _apex_takes(case, dtype):
                        continue
                    yield case, name, dtype, roundings(case.operator, name, dtype, case.leaves, case.constants)


def _apex_takes(case: Case, dtype: torch.dtype) -> bool:
    """Its softmaxes want 16 bits and multiples of 4."""
    softmax = "softmax" in case.operator or case.operator == "attention"
    return not softmax or (dtype.itemsize == 2 and case.sizes.b * case.sizes.heads % 4 == 0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    worst: dict[tuple[str, str], float] = {}
    for case, name, dtype, off in everything(parser.parse_args().device):
        worst[case.operator, name] = max(off, worst.get((case.operator, name), 0.0))
        if off > LIMIT:
            print(f"{case.operator} by {name} in {dtype} at {case.sizes}: {off:.1f} roundings off", file=sys.stderr)
    for (operator, name), off in worst.items():
        print(f"{operator:24} {name:10} {off:6.2f} roundings off at most")
    sys.exit(0 if worst and max(worst.values()) <= LIMIT else "some are further off than a few roundings")


if __name__ == "__main__":
    main()
