"""Whether the operators that a point asks for exist, and are there where its ranks would compute."""

import os
from pathlib import Path

from suite.experiment.cluster import Cluster
from suite.experiment.errors import did_you_mean, shown
from suite.experiment.point import Point
from suite.kernels.registry import OPERATORS, Device, choose, problem
from suite.records.schema import Source

_APEX_LONGEST, _APEX_DIVISOR = 2048, 4  # rows of scores that apex's softmax takes, and what sizes have to divide by


def kernel_problems(point: Point, cluster: Cluster, source: Source) -> list[str]:
    """One sentence for each operator or implementation that the point cannot have; only measured points need them."""
    found = _names(point)
    if found or source != "measured" or cluster.remote:
        return found
    if (why := problem(point.kernels, _device(point, cluster))) is not None:
        return [f"kernels={shown(point.kernels)}: {why}; kernels=auto would work"]
    return _limits_of_apex(point)


def _names(point: Point) -> list[str]:
    """Only a mapping can be wrong: a bare name is taken where an operator has it."""
    found = []
    for operator, name in point.kernels.items() if isinstance(point.kernels, dict) else ():
        if operator not in OPERATORS:
            hint = did_you_mean(operator, OPERATORS)
            found.append(f"kernels={shown(point.kernels)}: '{operator}' is no operator; {hint}")
        elif name not in ("auto", *OPERATORS[operator]):
            there = ", ".join(OPERATORS[operator])
            found.append(f"kernels.{operator}={name}: {operator} has {there}; kernels.{operator}=auto would work")
    return found


def _device(point: Point, cluster: Cluster) -> Device:
    """Where the ranks will compute, as far as it can be known without torch."""
    if cluster.device != "auto":
        return cluster.device
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    there = 0 if hidden else len(list(Path("/dev").glob("nvidia[0-9]*")))
    return "cuda" if there >= point.parallel.ranks else "cpu"


def _limits_of_apex(point: Point) -> list[str]:
    """What apex's causal softmax cannot take; its kernels would read past their rows."""
    if choose(point.kernels)["attention"] != "apex":
        return []
    model, training = point.model, point.training
    matrices = training.microbatch * model.heads // point.parallel.tensor
    wrong = {
        f"training.precision={training.precision} is not 16 bits": training.precision not in ("bf16", "fp16"),
        f"model.seq_length={model.seq_length} is above {_APEX_LONGEST}": model.seq_length > _APEX_LONGEST,
        f"model.seq_length={model.seq_length} is no multiple of {_APEX_DIVISOR}": model.seq_length % _APEX_DIVISOR,
        f"training.microbatch * model.heads / parallel.tensor={matrices} is no multiple of {_APEX_DIVISOR}": (
            matrices % _APEX_DIVISOR
        ),
    }
    works = "kernels.attention=torch would work"
    return [f"kernels.attention=apex: {what}; {works}" for what, is_wrong in wrong.items() if is_wrong]
