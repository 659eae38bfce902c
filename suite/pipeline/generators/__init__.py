"""The generators by name: each a pure function from sizes to a schedule, a page long, named after its paper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.interleaved import group_rule, interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.program import Schedule


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
        """Microbatches per group of the interleaved schedule."""


@dataclass(frozen=True)
class Generator:
    """A schedule by name: how it is built, and why sizes may not suit it."""

    build: Callable[[int, int, ScheduleOptions], Schedule]
    refuses: Callable[[int, int, ScheduleOptions], str | None]
    paper: str


def _one_chunk(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    """The rule of schedules with one stage per rank."""
    if options.chunks != 1:
        return (
            f"schedule.chunks={options.chunks}: {options.name} has one model chunk per rank; schedule.chunks=1 would "
            "work, or schedule=interleaved"
        )
    if options.group is not None:
        return (
            f"schedule.group={options.group}: {options.name} has no groups; leave schedule.group out, or use "
            "schedule=interleaved"
        )
    return None


GENERATORS: dict[str, Generator] = {
    "gpipe": Generator(
        lambda p, m, options: gpipe(p, m),
        _one_chunk,
        "Huang et al. 2019, arXiv:1811.06965",
    ),
    "1f1b": Generator(
        lambda p, m, options: one_f_one_b(p, m),
        _one_chunk,
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
    ),
    "interleaved": Generator(
        lambda p, m, options: interleaved(p, m, options.chunks, options.group),
        lambda p, m, options: group_rule(p, m, options.group),
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
    ),
}


def why_not(options: ScheduleOptions, stages: int, microbatches: int) -> str | None:
    """One sentence that says why the schedule cannot have these sizes and what would work; None if it can."""
    return GENERATORS[options.name].refuses(stages, microbatches, options)


def generate(options: ScheduleOptions, stages: int, microbatches: int) -> Schedule:
    """The schedule for p pipeline ranks and m microbatches.

    Raises:
        ValueError: the sizes do not suit the schedule (the sentence of `why_not`).
    """
    problem = why_not(options, stages, microbatches)
    if problem:
        raise ValueError(problem)
    return GENERATORS[options.name].build(stages, microbatches, options)
