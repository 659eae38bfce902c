"""Where the shipped data are: inside the installed package, or at the top of a checkout."""

from pathlib import Path
from typing import Literal

ResourceKind = Literal["experiments", "published", "templates", "clusters", "devices", "software", "kernels"]

_IN_CHECKOUT: dict[ResourceKind, str] = {
    "experiments": "experiments",
    "published": "results/published",
    "templates": "reports/templates",
    "clusters": "slurm/clusters",
    "devices": "slurm/devices",
    "software": "slurm/software",
    "kernels": "kernels",
}


def resource_dir(kind: ResourceKind) -> Path:
    """The folder with the shipped files of one kind. In a wheel they travel under `suite/shipped`."""
    package = Path(__file__).resolve().parent
    shipped = package / "shipped" / kind
    return shipped if shipped.is_dir() else package.parent / _IN_CHECKOUT[kind]
