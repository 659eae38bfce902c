"""Why the fields of a schedule or its sizes do not suit it: one sentence each, with what would work."""

from collections.abc import Container
from typing import Literal, Protocol

Chunks = Literal["one", "two", "even", "any"]


class ScheduleOptions(Protocol):
    """The schedule section of a point, as far as generators read it."""

    @property
    def name(self) -> str:
        """The schedule's name."""

    @property
    def chunks(self) -> int:
        """Model chunks per rank."""

    @property
    def group(self) -> int | None:
        """Microbatches per group of the interleaved schedules."""

    @property
    def cap(self) -> int | None:
        """The most microbatches in flight on a rank, in shares of a rank."""

    @property
    def base(self) -> str | None:
        """The schedule that another one is made from."""

    @property
    def file(self) -> str | None:
        """The file that a schedule is read from."""

    @property
    def costs(self) -> tuple[float, float, float]:
        """Time of F, B and W of one microbatch that a schedule is made for."""

    @property
    def latency(self) -> float:
        """Time of a message that a schedule is made for, in the unit of `costs`."""

    @property
    def kept(self) -> float:
        """The share of a microbatch's activations that a rank keeps between B and W."""


_UNSET = {"costs": (1, 1, 1), "latency": 0, "kept": 1}  # of the other fields it is None

_ABSENT = {  # what a schedule lacks that does not have the field, and one that has it
    "group": ("has no groups", "interleaved"),
    "cap": ("has no limit to choose on the microbatches in flight", "list"),
    "base": ("is not made from another schedule", "readiness"),
    "file": ("is not read from a file", "file"),
    "costs": ("is not made for given costs", "list"),
    "latency": ("is not made for a given latency", "list"),
    "kept": ("does not go by what is kept for W", "list"),
}


def field_problem(options: ScheduleOptions, fields: Container[str]) -> str | None:
    """A field is given that is not one of the schedule's own `fields`."""
    for field, (lacks, other) in _ABSENT.items():
        value = getattr(options, field)
        if field not in fields and value != _UNSET.get(field):
            value = list(value) if field == "costs" else value
            return (
                f"schedule.{field}={value}: {options.name} {lacks}; leave schedule.{field} out, or use schedule={other}"
            )
    return None


def chunks_problem(options: ScheduleOptions, rule: Chunks) -> str | None:
    """The schedule cannot have this number of model chunks per rank."""
    chunks = options.chunks
    given = f"schedule.chunks={chunks}: {options.name} has"
    if rule == "one" and chunks != 1:
        return f"{given} one model chunk per rank; schedule.chunks=1 would work, or schedule=interleaved"
    if rule == "two" and chunks != 2:
        return f"{given} exactly two model chunks per rank; schedule.chunks=2 would work"
    if rule == "even" and chunks % 2:
        return f"{given} two model chunks per rank for each wave; schedule.chunks={chunks + 1} would work"
    return None


def opposite_directions(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    """Two replicas in opposite directions: an even number of stages, and a microbatch for each."""
    if stages % 2:
        return _odd(stages, max(2, microbatches), options)
    if microbatches < 2:
        return (
            f"{options.name} needs at least one microbatch ({microbatches}) for each of its two replicas; 2 "
            "microbatches would work"
        )
    return None


def paired_directions(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    """DualPipe: an even number of stages, and of microbatches at least two per stage."""
    if stages % 2:
        return _odd(stages, _enough(_even(stages), microbatches), options)
    enough = _enough(stages, microbatches)
    if microbatches == enough:
        return None
    return (
        f"{options.name} needs an even number of microbatches ({microbatches}), at least two for each of the {stages} "
        f"stages; {enough} microbatches would work"
    )


def two_per_stage(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    """DualPipeV: two microbatches per stage or more."""
    if microbatches >= 2 * stages:
        return None
    return (
        f"{options.name} needs at least two microbatches ({microbatches}) for each of the {stages} stages; "
        f"{2 * stages} microbatches would work"
    )


def _odd(stages: int, enough: int, options: ScheduleOptions) -> str:
    return (
        f"parallel.pipeline={stages}: {options.name} runs two replicas in opposite directions, which takes an even "
        f"number of stages; parallel.pipeline={_even(stages)} with {enough} microbatches would work"
    )


def _even(stages: int) -> int:
    """The even number next to an odd one; the smaller, which always fits where the odd one does."""
    return max(2, stages - 1)


def _enough(stages: int, microbatches: int) -> int:
    return max(2 * stages, microbatches + microbatches % 2)
