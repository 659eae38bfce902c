"""What a page of the paper says of the simulator itself: the rows of other papers, and every fitted constant."""

from functools import cache

from pydantic import BaseModel

from suite.experiment.cluster import read_cluster
from suite.experiment.hardware import software_named
from suite.records.published import published, published_files
from suite.report.grid import Grid, Heading
from suite.report.score import score, sources_grid
from suite.resources import resource_dir

_CLUSTER = "selene"


@cache
def other_papers(own: str) -> Grid:
    """The simulator's error by source over all published rows that are not in the file `own`."""
    return sources_grid(score(row for name in published_files() if name != own for row in published(name)))


def fitted_constants() -> Grid:
    """Every constant of the paper's cluster and of software stacks that was fitted, its range, and the rows."""
    columns = (
        Heading("of", "What it is a constant of."),
        Heading("constant"),
        Heading("value", numeric=True),
        Heading("sensible range", "What would be physically sensible.", numeric=True),
        Heading("fitted on", "The published rows that it was fitted on, and no others."),
    )
    hardware = read_cluster(resource_dir("clusters") / f"{_CLUSTER}.yaml").hardware
    assert hardware is not None
    stacks = [software_named(file.stem) for file in sorted(resource_dir("software").glob("*.yaml"))]
    parts: list[tuple[str, BaseModel]] = [
        (hardware.device.name, hardware.device),
        (f"{_CLUSTER}, inside a node", hardware.node),
        (f"{_CLUSTER}, network", hardware.network),
        *((stack.name, stack) for stack in stacks),
    ]
    body = [
        [name, constant, f"{getattr(part, constant):g}", f"{fit.low:g} to {fit.high:g}", fit.rows]
        for name, part in parts
        for constant, fit in getattr(part, "fitted", {}).items()
    ]
    return Grid(columns, body)
