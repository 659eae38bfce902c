"""What the fields can say and this version cannot run. Each entry goes when the feature comes."""

from suite.experiment.errors import shown
from suite.experiment.point import Checkpoint, Point


def not_yet(point: Point) -> list[str]:
    """One sentence for each value that this version cannot run, with one that it can."""
    found = []
    parallel = point.parallel
    for field, value in point.checkpoint.model_dump(exclude_defaults=True).items():
        if parallel.sharding == "zero3":
            found.append(
                _sentence(
                    f"checkpoint.{field}",
                    shown(value),
                    shown(Checkpoint.model_fields[field].default),
                    " with parallel.sharding=zero3",
                )
            )
    # Imported here: the schedule generators are not needed to read a file.
    from suite.pipeline.generators import GENERATORS

    name = point.schedule.name
    if parallel.sharding == "zero3" and (GENERATORS[name].splits_backward or name == "readiness"):
        found.append(_sentence("schedule.name", name, "1f1b", " with parallel.sharding=zero3"))
    return found


def _sentence(field: str, value: str, works: str, where: str = "") -> str:
    return f"{field}={value}: this version cannot run it yet{where}; {field}={works} would work"
