"""Cluster profiles: what a cluster can run, what hardware is there, and how to submit there."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from suite.experiment.errors import BadInput, Problem, did_you_mean, shown
from suite.experiment.fields import rules_of
from suite.experiment.hardware import Hardware, validated
from suite.experiment.point import Count, Pace, Point
from suite.experiment.source import read_yaml
from suite.experiment.submission import Slurm


class Cluster(BaseModel):
    """A profile, one file in `slurm/clusters`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    remote: Annotated[bool, Field(strict=True)] = False  # another machine: nothing of it runs here but simulation
    max_ranks: Count
    max_emulated_ranks: Count = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads_per_rank: Annotated[int, Field(strict=True, ge=1)] = 1
    slurm: Slurm | None = None  # how to submit; without it, nothing is submitted there
    hardware: Hardware | None = None  # what the simulator predicts; without it, only what a point's `pace` says

    def hardware_for(self, point: Point) -> Hardware | None:
        """What the point is predicted from; None where its own `pace` gives the times, or nothing does."""
        return self.hardware if point.pace == Pace() else None


_SECTIONS: dict[str, type[BaseModel]] = {"hardware": Hardware, "slurm": Slurm}


@cache
def read_cluster(path: Path) -> Cluster:
    """The profile in a file. BadInput carries everything that is wrong with it."""
    root = read_yaml(path)
    if not isinstance(root.value, dict):
        raise BadInput([Problem(f"got {shown(root.plain())}; a cluster profile is a mapping", root.place)])
    rules = rules_of(Cluster)
    problems: list[Problem] = []
    for key, node in root.value.items():
        rule = rules.get(key)
        if rule is None:
            problems.append(Problem(f"unknown key; {did_you_mean(key, rules)}", node.key_place, key))
        elif (section := _SECTIONS.get(key)) is not None:
            validated(section, node, key, problems)
        elif (complaint := rule.complaint(node.plain())) is not None:
            problems.append(Problem(complaint, node.place, key))
    for key, rule in rules.items():
        if rule.required and key not in root.value:
            problems.append(Problem(f"is missing; it must be {rule.must_be}", root.place, key))
    name = root.value.get("name")
    if not problems and name is not None and name.value != path.stem:
        message = f"got {shown(name.value)}; it must be the file's own name, {path.stem}"
        problems.append(Problem(message, name.place, "name"))
    if problems:
        raise BadInput(problems)
    return Cluster.model_validate(root.plain())
