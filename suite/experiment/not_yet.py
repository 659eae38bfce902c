"""What the fields can say and this version cannot run. Each entry goes when the feature comes."""

from suite.experiment.point import Point

_KERNEL_SETS = ("triton", "apex")


def not_yet(point: Point) -> list[str]:
    """One sentence for each value that this version cannot run, with one that it can."""
    found = []
    parallel, schedule = point.parallel, point.schedule
    if parallel.sharding == "zero3":
        found.append(_sentence("parallel.sharding", parallel.sharding, "none"))
    kernels = point.kernels if isinstance(point.kernels, dict) else {"": point.kernels}
    for operator, kernel_set in kernels.items():
        if kernel_set in _KERNEL_SETS:
            found.append(_sentence(f"kernels.{operator}" if operator else "kernels", kernel_set, "torch"))
    for field in ("cap", "base", "file"):
        value = getattr(schedule, field)
        if value is not None:
            found.append(_sentence(f"schedule.{field}", str(value), "null"))
    return found


def _sentence(field: str, value: str, works: str) -> str:
    return f"{field}={value}: this version cannot run it yet; {field}={works} would work"
