"""Launches of two revisions in turns: A B, B A, A B, ..., point by point, so that a drift hits both alike."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.experiment.errors import BadInput, Problem
from suite.experiment.expansion import expand
from suite.experiment.point import Point
from suite.experiment.spec import read_experiment
from suite.records.schema import Source
from suite.records.store import Store
from suite.regression.worktree import Checkout

SIDES = ("base", "candidate")


@dataclass(frozen=True)
class Turn:
    """A launch that has ended."""

    number: int  # from 1
    side: str
    point: Point
    status: str  # the record's, or why there is none
    seconds: float  # that it took, the processes' start included


@dataclass(frozen=True)
class Session:
    """What is measured in turns: points of one experiment at one scale, by two checkouts, into one folder."""

    experiment: str
    scale: str
    source: Source
    checkouts: tuple[Checkout, Checkout]  # base, candidate
    on: str
    folder: Path

    def measure(self, points: Sequence[Point], pairs: int, stage: str, tell: Callable[[Turn], None]) -> list[Path]:
        """Run the pairs; a point of which a launch fails is left alone after that pair. The two results folders."""
        results = [self.folder / stage / side for side in SIDES]
        files = {point.id: self._file(point) for point in points}
        broken: set[str] = set()
        number = 0
        for pair in range(pairs):
            for point in points:
                if point.id in broken:
                    continue
                for side in (0, 1) if pair % 2 == 0 else (1, 0):
                    number += 1
                    begun = time.monotonic()
                    status = self._launch(side, files[point.id], point, results[side])
                    if status != "ok":
                        broken.add(point.id)
                    tell(Turn(number, SIDES[side], point, status, time.monotonic() - begun))
        return results

    def _launch(self, side: int, file: Path, point: Point, results: Path) -> str:
        said = self.checkouts[side].launch(file, self.on, results)
        records, _ = Store(results).read(self.experiment, self.scale, self.source)
        own = [record for record in records if record.point_id == point.id]
        return max(own, key=lambda record: record.launch).status if own else f"no record: {said}"

    def _file(self, point: Point) -> Path:
        """An experiment file of the one point, which both revisions read. Raises BadInput where it has another id."""
        path = self.folder / "points" / f"{point.id}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = {"name": self.experiment, "scales": {self.scale: _fields(point)}}
        path.write_text(json.dumps(text, indent=1) + "\n")  # JSON is YAML
        written = [planned.point_id for planned in expand(read_experiment(path), self.scale).points]
        if written != [point.id]:
            raise BadInput([Problem(f"{path}: point {point.id} reads back as {', '.join(written)}")])
        return path


def _fields(point: Point) -> dict[str, Any]:
    """A point's fields without defaults, so that a revision that does not know a newer field reads them too."""
    fields = point.model_dump(mode="json", exclude_defaults=True)
    fields.get("measure", {}).pop("launches", None)
    schedule = point.schedule.model_dump(mode="json", exclude_defaults=True, exclude={"digest"})
    fields["schedule"] = {**schedule, "name": point.schedule.name, "chunks": point.schedule.chunks}
    return fields
