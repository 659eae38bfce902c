"""What the turns of a match say: medians, ratios with their intervals, and which gates hold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from benchmarks.engine.contenders import PAIR, Match
from benchmarks.engine.suite_side import simulated_seconds
from benchmarks.engine.turns import Turn

from suite.measure.flops import model_flops
from suite.pipeline.generators import generate
from suite.regression.paired import Effect, effect_of

LOSS_TOLERANCE = 1e-5  # relative, to the single process
QUIET = 0.2  # cores that others may keep busy, a virtual machine's host and the error of clock ticks among them
ENGINE_LIMIT = 1.03  # measured over simulated with the iteration's own action times, at two pipeline ranks alone


@dataclass(frozen=True)
class Gate:
    """Something that has to hold."""

    said: str
    holds: bool


@dataclass(frozen=True)
class Result:
    """One match with its timed turns. `peak` is FLOP/s of one thread, `losses` are the single process's."""

    match: Match
    turns: Sequence[Turn]
    peak: float
    losses: Sequence[float]
    warmup: int

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        """Times of the rounds by contender."""
        return {entry.name: [turn.seconds for turn in self.of(entry.name)] for entry in self.match.entries}

    def of(self, name: str) -> list[Turn]:
        """The timed turns of one contender, by round."""
        return [turn for turn in self.turns if turn.entry == name and turn.round >= 0]

    @property
    def best_suite(self) -> str:
        """The fastest of the suite's, by its median."""
        return min((one.name for one in self.match.suite), key=lambda name: median(self.seconds[name]))

    @property
    def best_torch(self) -> str:
        """The fastest of torch's, by its median."""
        return min((one.name for one in self.match.torch), key=lambda name: median(self.seconds[name]))

    def over(self, name: str, other: str) -> float:
        """The ratio of the medians."""
        return median(self.seconds[name]) / median(self.seconds[other])

    def effect(self, name: str, other: str) -> Effect:
        """The paired statistics, a pair being two turns of one round."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return effect_of([math.log(mine / theirs) for mine, theirs in pairs])

    @property
    def disturbed(self) -> float:
        """The share of timed turns in which other processes kept more than `QUIET` of a core busy."""
        timed = [turn for turn in self.turns if turn.round >= 0]
        return sum(turn.others > QUIET for turn in timed) / len(timed)

    def share_of_peak(self, name: str) -> float:
        """Model FLOP/s over the peak of the cores used."""
        flops = model_flops(self.match.suite[0].point.model, self.match.suite[0].point.training.global_batch)
        return flops / median(self.seconds[name]) / (self.match.bound.ranks * self.peak)

    def loss_deviation(self, name: str) -> float:
        """The largest relative deviation of a loss from the single process's; the pair has other batches."""
        turns = [turn for turn in self.turns if turn.entry == name]
        return max(abs(turn.loss / self.losses[turn.round + self.warmup] - 1) for turn in turns)

    @cached_property
    def over_simulated(self) -> dict[str, tuple[float, float]]:
        """By contender of the suite with a pipeline, measured over simulated: the iteration, and its actions alone.

        Simulated is the event simulation of the program with the times that the actions of that iteration took; the
        iteration's has the slowest rank's update after it.
        """
        found = {}
        for one in self.match.suite:
            if one.point.parallel.pipeline == 1:
                continue
            schedule = generate(one.point.schedule, one.point.parallel.pipeline, one.point.microbatches)
            whole, actions = [], []
            for turn in self.of(one.name):
                makespan = simulated_seconds(schedule, turn.ranks)
                update = max(rank["split"]["update"] for rank in turn.ranks)
                starts, ends = zip(*(rank["window"] for rank in turn.ranks), strict=True)
                whole.append(turn.seconds / (makespan + update))
                actions.append((max(ends) - min(starts)) / makespan)
            found[one.name] = median(whole), median(actions)
        return found

    @property
    def gates(self) -> list[Gate]:
        """What has to hold of this match."""
        ours, theirs = self.best_suite, self.best_torch
        ratio, limit = self.over(ours, theirs), self.match.limit
        gates = [Gate(f"{ours} takes {ratio:.3f} of {theirs}; at most {limit:.2f}", ratio <= limit)]
        if self.match.layout == (1, 2, 1):
            gates += [
                Gate(f"{name} takes {whole:.3f} of its simulation; at most {ENGINE_LIMIT}", whole <= ENGINE_LIMIT)
                for name, (whole, _) in self.over_simulated.items()
            ]
        worst = max((self.loss_deviation(name), name) for name in self.seconds if name != PAIR)
        said = f"losses are the single process's within {LOSS_TOLERANCE:g}; the farthest, {worst[1]}, by {worst[0]:.1e}"
        return [*gates, Gate(said, worst[0] <= LOSS_TOLERANCE)]

    @property
    def splits(self) -> dict[str, list[dict[str, float]]]:
        """By contender of the suite and rank, where an iteration went: medians in seconds."""
        found = {}
        for one in self.match.suite:
            turns = self.of(one.name)
            keys = list(turns[0].ranks[0]["split"])
            found[one.name] = [
                {key: median(turn.ranks[rank]["split"][key] for turn in turns) for key in keys}
                for rank in range(one.point.parallel.ranks)
            ]
        return found
