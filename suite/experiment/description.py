"""Experiments in a few words: what `suite list` says of each."""

from dataclasses import dataclass

from suite.experiment.catalogue import list_experiments, load_experiment
from suite.experiment.errors import BadInput
from suite.experiment.expansion import expand


@dataclass(frozen=True)
class Description:
    """An experiment by the name that finds it; `points` are the numbers of points by scale."""

    name: str
    title: str
    points: dict[str, int]


def described_experiments() -> list[Description]:
    """Every experiment that a name finds. One that cannot be used has no points, and what is wrong as its title."""
    return [_description(name) for name in list_experiments()]


def _description(name: str) -> Description:
    try:
        experiment = load_experiment(name)
        points = {scale: len(expand(experiment, scale).points) for scale in experiment.scales}
    except BadInput as bad:
        return Description(name, f"cannot be used: {bad.problems[0]}", {})
    return Description(name, experiment.title, points)
