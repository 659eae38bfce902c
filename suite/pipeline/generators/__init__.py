"""The generators by name: each a pure function from sizes to a schedule, a page long, named after its paper."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from suite.pipeline.collection import no_collection
from suite.pipeline.generators.chimera import chimera
from suite.pipeline.generators.columns import linear, loop, zigzag
from suite.pipeline.generators.controllable_memory import v_half, v_min, v_zb
from suite.pipeline.generators.dualpipe import dualpipe, dualpipe_v
from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.hanayo import hanayo
from suite.pipeline.generators.interleaved import group_rule, interleaved
from suite.pipeline.generators.list_scheduler import list_scheduled
from suite.pipeline.generators.looped_bfs import looped_bfs
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.generators.rules import (
    Chunks,
    ScheduleOptions,
    chunks_problem,
    field_problem,
    opposite_directions,
    paired_directions,
    two_per_stage,
)
from suite.pipeline.generators.two_stage_backward import two_stage_backward
from suite.pipeline.generators.zb_v import zb_v
from suite.pipeline.generators.zero_bubble import interleaved_zb, zb_h1, zb_h2
from suite.pipeline.program import MOST_ACTIONS, Schedule, ScheduleError
from suite.pipeline.readiness import settled
from suite.pipeline.timeline import Costs

MOST_RACED = 20_000  # actions of a hint that a plan still tries under its cap; longer ones are tried when they run


def _any_sizes(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    return None


def _groups(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    return group_rule(options.name, stages, microbatches, options.group)


@dataclass(frozen=True)
class Generator:
    """A schedule by name: its paper, how it is built from p, m and options, and what it accepts.

    `fields` are the options beside the chunks that mean something to it, `sizes` says why p and m do not suit.
    `splits_backward`: its programs have B and W, or may have. `replicas`: copies of the model that share the ranks.
    """

    paper: str
    build: Callable[[int, int, ScheduleOptions], Schedule]
    chunks: Chunks = "one"
    fields: tuple[str, ...] = ()
    sizes: Callable[[int, int, ScheduleOptions], str | None] = _any_sizes
    splits_backward: bool = False
    replicas: int = 1


_ZIGZAG = ("zb-v", "v-min", "v-half", "v-zb", "hanayo", "dualpipe-v")

_INTERLEAVED = "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2"
_ZERO_BUBBLE = "Qi et al. 2023, arXiv:2401.10241"
_CONTROLLABLE = "Qi et al. 2024, arXiv:2405.15362"
_DUALPIPE = "DeepSeek-AI 2024, arXiv:2412.19437"
_TWO_STAGE = "Rae et al. 2024, arXiv:2405.18047"

GENERATORS: dict[str, Generator] = {
    "gpipe": Generator("Huang et al. 2019, arXiv:1811.06965", lambda p, m, _: gpipe(p, m)),
    "1f1b": Generator("Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1", lambda p, m, _: one_f_one_b(p, m)),
    "interleaved": Generator(
        _INTERLEAVED,
        lambda p, m, options: interleaved(p, m, options.chunks, options.group),
        chunks="any",
        fields=("group",),
        sizes=_groups,
    ),
    "looped-bfs": Generator(
        "Lamy-Poirier 2022, arXiv:2211.05953", lambda p, m, options: looped_bfs(p, m, options.chunks), chunks="any"
    ),
    "zb-h1": Generator(_ZERO_BUBBLE, lambda p, m, _: zb_h1(p, m), splits_backward=True),
    "zb-h2": Generator(_ZERO_BUBBLE, lambda p, m, _: zb_h2(p, m), splits_backward=True),
    "interleaved-zb": Generator(
        f"{_ZERO_BUBBLE}, on {_INTERLEAVED}",
        lambda p, m, options: interleaved_zb(p, m, options.chunks, options.group),
        chunks="any",
        fields=("group",),
        sizes=_groups,
        splits_backward=True,
    ),
    "zb-v": Generator(f"{_ZERO_BUBBLE}, section 6", lambda p, m, _: zb_v(p, m), chunks="two", splits_backward=True),
    "v-min": Generator(_CONTROLLABLE, lambda p, m, _: v_min(p, m), chunks="two", splits_backward=True),
    "v-half": Generator(_CONTROLLABLE, lambda p, m, _: v_half(p, m), chunks="two", splits_backward=True),
    "v-zb": Generator(_CONTROLLABLE, lambda p, m, _: v_zb(p, m), chunks="two", splits_backward=True),
    "chimera": Generator(
        "Li and Hoefler 2021, arXiv:2107.06925", lambda p, m, _: chimera(p, m), sizes=opposite_directions, replicas=2
    ),
    "2bp-gpipe": Generator(_TWO_STAGE, lambda p, m, _: two_stage_backward(gpipe(p, m)), splits_backward=True),
    "2bp-1f1b": Generator(_TWO_STAGE, lambda p, m, _: two_stage_backward(one_f_one_b(p, m)), splits_backward=True),
    "hanayo": Generator(
        "Liu et al. 2023, arXiv:2308.15762", lambda p, m, options: hanayo(p, m, options.chunks), chunks="even"
    ),
    "dualpipe": Generator(
        _DUALPIPE, lambda p, m, _: dualpipe(p, m), sizes=paired_directions, splits_backward=True, replicas=2
    ),
    "dualpipe-v": Generator(
        _DUALPIPE, lambda p, m, _: dualpipe_v(p, m), chunks="two", sizes=two_per_stage, splits_backward=True
    ),
    "list": Generator(
        f"{_ZERO_BUBBLE}, section 3.1",
        lambda p, m, o: list_scheduled(p, m, o.chunks, o.cap, o.costs, o.latency, o.kept),
        chunks="any",
        fields=("cap", "costs", "latency", "kept"),
        splits_backward=True,
    ),
}


@dataclass(frozen=True)
class _BaseOptions:
    """The options of the schedule that `readiness` takes its hint from."""

    name: str
    chunks: int
    group: int | None
    cap: int | None
    costs: tuple[float, float, float]
    latency: float
    kept: float
    base: None = None
    file: None = None


def _base(options: ScheduleOptions) -> _BaseOptions:
    name = options.base or "1f1b"
    cap = options.cap if "cap" in GENERATORS[name].fields else None
    return _BaseOptions(name, options.chunks, options.group, cap, options.costs, options.latency, options.kept)


def _hint(stages: int, microbatches: int, options: ScheduleOptions) -> Schedule:
    """The base's schedule. Its programs only say what a rank prefers among what is ready."""
    return replace(generate(_base(options), stages, microbatches), name="readiness", cap=options.cap)


def _no_hint(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    if options.base in ("readiness", "file"):
        return (
            f"schedule.base={options.base}: readiness takes its hint from a schedule that is generated; "
            "schedule.base=1f1b would work"
        )
    if options.cap is None:
        return (
            "schedule.cap=null: readiness has no order that would limit the microbatches in flight; "
            f"schedule.cap={2 * stages} would work"
        )
    problem = why_not(_base(options), stages, microbatches)
    if problem or 3 * stages * options.chunks * microbatches > MOST_RACED:
        return problem
    try:
        settled(_hint(stages, microbatches, options), Costs())
    except ScheduleError as error:
        reason = str(error).partition("; ")[0]
        return f"schedule.cap={options.cap}: {reason}; schedule.cap={microbatches} would work"
    return None


GENERATORS["readiness"] = Generator(
    "Liu et al. 2026, arXiv:2605.18750",
    _hint,
    chunks="any",
    fields=("group", "cap", "base", "costs", "latency", "kept"),
    sizes=_no_hint,
)


def _from_file(name: str) -> Schedule:
    """The schedule in a file, read and proved once as long as the file stays as it is."""
    status = Path(name).stat()
    return _cached(name, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _cached(name: str, changed: int, size: int) -> Schedule:
    from suite.pipeline.exchange import read_schedule  # here: whoever proves nothing starts without numpy

    return replace(read_schedule(Path(name)), name="file")


def _read(stages: int, microbatches: int, options: ScheduleOptions) -> Schedule:
    assert options.file is not None
    return _from_file(options.file)


def _unlike(stages: int, microbatches: int, options: ScheduleOptions) -> str | None:
    """The file has no schedule, or one of other sizes."""
    if options.file is None:
        return "schedule.file=null: the schedule is read from a file; schedule.file=PATH, of torch's CSV, would work"
    try:
        found = _from_file(options.file)
    except FileNotFoundError:
        return f"schedule.file={options.file}: there is no such file"
    except (ScheduleError, OSError) as error:
        return f"schedule.file: {error}"
    for field, given, there in (
        ("parallel.pipeline", stages, found.stages),
        ("schedule.chunks", options.chunks, found.chunks),
        ("microbatches", microbatches, found.microbatches),
    ):
        if given != there:
            return f"{field}={given}: the schedule in {options.file} has {there}; {field}={there} would work"
    return None


GENERATORS["file"] = Generator("", _read, chunks="any", fields=("file",), sizes=_unlike, splits_backward=True)


def placement(options: ScheduleOptions, stages: int) -> tuple[tuple[int, ...], ...]:
    """Where the schedule puts each virtual stage, by replica, known without building its programs."""
    if options.name == "readiness":
        return placement(_base(options), stages)
    if options.name == "file":
        assert options.file is not None
        return _from_file(options.file).placement
    if GENERATORS[options.name].replicas > 1:
        return (linear(stages), linear(stages)[::-1])
    return ((zigzag if options.name in _ZIGZAG else loop)(stages, options.chunks),)


def why_not(options: ScheduleOptions, stages: int, microbatches: int) -> str | None:
    """One sentence that says why the schedule cannot have these sizes and what would work; None if it can."""
    generator = GENERATORS[options.name]
    return (
        field_problem(options, generator.fields)
        or chunks_problem(options, generator.chunks)
        or _too_many(generator, options, stages, microbatches)
        or generator.sizes(stages, microbatches, options)
    )


def _too_many(generator: Generator, options: ScheduleOptions, stages: int, microbatches: int) -> str | None:
    """More actions than are worth listing."""
    each = (3 if generator.splits_backward else 2) * stages * options.chunks
    if each * microbatches <= MOST_ACTIONS:
        return None
    most = MOST_ACTIONS // each
    fitting = (most // step * step for step in (2 * stages, stages, 1))
    fewer = next((m for m in fitting if m and generator.sizes(stages, m, options) is None), None)
    works = "fewer stages, chunks or microbatches" if fewer is None else f"{fewer} microbatches"
    return (
        f"{options.name} of {stages} stages with {options.chunks} chunks each and {microbatches} microbatches has "
        f"{each * microbatches} actions, more than the {MOST_ACTIONS} of the largest schedule; {works} would work"
    )


def generate(options: ScheduleOptions, stages: int, microbatches: int) -> Schedule:
    """The schedule for p pipeline ranks and m microbatches.

    Raises:
        ValueError: the sizes do not suit the schedule (the sentence of `why_not`).
    """
    problem = why_not(options, stages, microbatches)
    if problem:
        raise ValueError(problem)
    with no_collection():
        return GENERATORS[options.name].build(stages, microbatches, options)
