"""Who is timed beside whom: by layout the suite's points, torch's recipes, and the bound that both are held against."""

import os
import re
import shutil
from dataclasses import dataclass, replace

from benchmarks.engine.peer_step import PeerStep, Recipe
from benchmarks.engine.setting import BATCH, Layout, point
from benchmarks.engine.suite_side import suites_step
from benchmarks.engine.turns import Entry, Step

from suite.experiment.point import Point
from suite.measure.provenance import cores

PAIR = "pair"


@dataclass(frozen=True)
class Suites:
    """The suite by one of its schedules."""

    point: Point
    device: str = "cpu"

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"suite {_described(self.point, self.point.schedule.name, self.point.schedule.split)}"

    @property
    def entry(self) -> Entry:
        """Its ranks."""
        return Entry(self.name, self.point.parallel.ranks, suites_step, (self.point, self.device))


@dataclass(frozen=True)
class Peers:
    """Torch's own parts by a recipe."""

    point: Point
    recipe: Recipe

    @property
    def name(self) -> str:
        """As the table has it."""
        options = [word for word in ("sequence", "compiled") if getattr(self.recipe, word)]
        return " ".join(["torch", _described(self.point, self.recipe.schedule, self.recipe.split), *options])

    @property
    def entry(self) -> Entry:
        """Its ranks."""
        return Entry(self.name, self.point.parallel.ranks, peers_step, (self.point, self.recipe))


@dataclass(frozen=True)
class Match:
    """What is timed in turns. The best of the suite's is to take at most `limit` of what torch's best takes."""

    name: str
    suite: tuple[Suites, ...]
    torch: tuple[Peers, ...]
    limit: float

    @property
    def layout(self) -> Layout:
        """The layout that all of them have."""
        parallel = self.suite[0].point.parallel
        return parallel.tensor, parallel.pipeline, parallel.data

    @property
    def bound(self) -> Entry:
        """Plain torch, one process a rank as far as there are cores, each by itself with its part of the batch."""
        processes = min(self.suite[0].point.parallel.ranks, cores())
        share = BATCH // processes
        alone = point((1, 1, 1), share, batch=share)
        return Entry(PAIR, processes, peers_step_alone, (alone, self.suite[0].device))

    def only(self, pattern: str) -> "Match":
        """The same of those whose names the pattern is found in."""
        suite, torch = (tuple(x for x in side if re.search(pattern, x.name)) for side in (self.suite, self.torch))
        return replace(self, suite=suite, torch=torch)

    @property
    def entries(self) -> list[Entry]:
        """All that are timed, in the order of their turns."""
        return [self.bound, *(one.entry for one in (*self.suite, *self.torch))]


def peers_step(at: Point, recipe: Recipe) -> Step:
    """This rank's step of torch's parts."""
    step = PeerStep(at, recipe)
    return lambda iteration: (step.run(iteration), {})


def peers_step_alone(at: Point, device: str = "cpu") -> Step:
    """The same for a process that works by itself, whatever other processes there are."""
    return peers_step(at, Recipe(device=device))


def _described(at: Point, schedule: str, split: tuple[float, ...] | None) -> str:
    microbatch = f"b={at.training.microbatch}"
    if at.parallel.pipeline == 1:
        return microbatch
    layers = split or [at.model.layers // at.virtual_stages] * at.virtual_stages
    return f"{schedule} {'+'.join(map(str, layers))} {microbatch}"


def has_compiler() -> bool:
    """Whether torch.compile finds the C++ compiler that it needs on a CPU."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def matches(device: str = "cpu") -> dict[str, Match]:
    """All of them by name, on one GPU ("cuda") the single process; compiled only where there is a compiler."""
    several = (*_pipelines(), *_others()) if device == "cpu" else ()
    return {match.name: match for match in (*several, _single(device))}


# The logits weigh 1.2 layers, a layer's attention 0.4 of it: so split, the ranks have alike, as far as halves allow.
_TWO, _ROUND, _ZIGZAG = (4.5, 3.5), (2, 2.5, 2.5, 1), (2.5, 2, 2.5, 1)
_PIPELINES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("1f1b", _TWO),
    ("interleaved", _ROUND),
    ("interleaved-zb", _ROUND),
    ("zb-v", _ZIGZAG),
)
_SUITES_PIPELINES = (*_PIPELINES, ("zb-h1", _TWO))
_TORCHS_PIPELINES = (*_PIPELINES, ("interleaved", (3, 2, 2, 1)))  # the best of whole layers


def _pipelines() -> list[Match]:
    """Two stages: eight microbatches of one sequence, and four of two."""
    return [
        Match(
            f"p2-m{BATCH // b}",
            tuple(Suites(point((1, 2, 1), b, name, split)) for name, split in _SUITES_PIPELINES),
            tuple(Peers(point((1, 2, 1), b), Recipe(name, split)) for name, split in _TORCHS_PIPELINES),
            0.97,
        )
        for b in (1, 2)
    ]


def _others() -> list[Match]:
    compiled = [Recipe(compiled=True)] if has_compiler() else []
    split = [Recipe(), Recipe(sequence=True), *compiled]
    return [
        Match("t2", _suites((2, 1, 1), (8, 2)), _peers((2, 1, 1), (8, 2), *split), 0.85),
        Match("d2", _suites((1, 1, 2), (4, 1)), _peers((1, 1, 2), (4, 1), Recipe(), *compiled), 0.97),
        Match("t2p2", _piped((2, 2, 1), 2), _piped_peers((2, 2, 1), 2, has_compiler()), 1.0),
        Match("t2d2", _suites((2, 1, 2), (4,)), _peers((2, 1, 2), (4,), Recipe(), *compiled), 1.0),
        Match("p2d2", _piped((1, 2, 2), 1), _piped_peers((1, 2, 2), 1, False), 1.0),
        Match("t2p2d2", _piped((2, 2, 2), 1), _piped_peers((2, 2, 2), 1, has_compiler()), 1.0),
    ]


def _single(device: str) -> Match:
    recipes = [Recipe(device=device), *([Recipe(compiled=True, device=device)] if has_compiler() else [])]
    suite = tuple(replace(one, device=device) for one in _suites((1, 1, 1), (8, 1)))
    return Match("single", suite, _peers((1, 1, 1), (8, 1), *recipes), 1.0)


def _suites(layout: Layout, microbatches: tuple[int, ...]) -> tuple[Suites, ...]:
    return tuple(Suites(point(layout, b)) for b in microbatches)


def _peers(layout: Layout, microbatches: tuple[int, ...], *recipes: Recipe) -> tuple[Peers, ...]:
    return tuple(Peers(point(layout, b), recipe) for recipe in recipes for b in microbatches)


def _piped(layout: Layout, microbatch: int) -> tuple[Suites, ...]:
    return tuple(Suites(point(layout, microbatch, name, split)) for name, split in _SUITES_PIPELINES[:2])


def _piped_peers(layout: Layout, microbatch: int, compiled: bool) -> tuple[Peers, ...]:
    recipes = [Recipe(name, split) for name, split in _TORCHS_PIPELINES[:2]]
    recipes += [replace(one, compiled=True) for one in recipes if compiled]
    return tuple(Peers(point(layout, microbatch), recipe) for recipe in recipes)
