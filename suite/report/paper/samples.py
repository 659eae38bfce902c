"""The values of an experiment by where they come from: its records by source, and the published rows of its points."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from suite.experiment.point import Point
from suite.records.published import PublishedRow
from suite.report.ideal import times_are_given
from suite.report.paper.quantities import QUANTITIES, Timed
from suite.report.summary import PointRow


@dataclass(frozen=True)
class Sample:
    """One point of one source: the launches that it was timed by, or the published rows that belong to it."""

    source: str
    scale: str
    point: Point
    row: PointRow | None = None  # of a record
    published: tuple[PublishedRow, ...] = ()

    @property
    def given_times(self) -> bool:
        """Whether the times of its actions were given, so that it says nothing of a device."""
        return self.row is not None and times_are_given(self.row.best.record)

    @cached_property
    def timed(self) -> Timed | None:
        """The iteration, None where none was timed; the median of the launches' medians."""
        launches = [one for one in self.row.used if one.metrics.iteration_seconds is not None] if self.row else []
        if not launches:
            return None
        bubbles = [one.metrics.measured_bubble for one in launches if one.metrics.measured_bubble is not None]
        peaks = [one.metrics.peak_flops_per_rank for one in launches if one.metrics.peak_flops_per_rank is not None]
        return Timed(
            self.point,
            median(one.metrics.iteration_seconds or 0.0 for one in launches),
            median(bubbles) if bubbles else None,
            median(peaks) if peaks else None,
        )

    def value(self, metric: str) -> float | None:
        """The value in the metric's unit; None where the source has none. A metric `to_first` is not divided yet."""
        if self.published:
            return next((row.value for row in self.published if row.metric == metric), None)
        return QUANTITIES[metric].of(self.timed) if self.timed else None

    def printed(self, metric: str) -> str | None:
        """A published value as it was printed."""
        return next((row.printed for row in self.published if row.metric == metric), None)

    @property
    def memory(self) -> dict[str, Any]:
        """The predicted memory of a simulated record: `verdict`, `predicted_bytes`, `capacity_bytes`."""
        found = self.row.best.record.memory if self.row else None
        return found.model_dump() if found else {}

    @property
    def fits(self) -> bool:
        """Whether it could run: not where the memory model says that it does not fit."""
        return self.memory.get("verdict") != "does not fit"

    @property
    def trouble(self) -> str | None:
        """Why a record has no value that counts, in words."""
        if self.row is None:
            return None
        record = self.row.best.record
        if record.status != "ok":
            return f"{record.status}: {record.reason}" if record.reason else record.status
        if not self.fits:
            gib = (self.memory.get(key, 0) / 2**30 for key in ("predicted_bytes", "capacity_bytes"))
            return "does not fit: {:.1f} of {:.1f} GiB".format(*gib)
        return None if self.timed else "no iteration was timed"


def recorded(rows: Sequence[PointRow]) -> list[Sample]:
    """A sample of every point and source that has records, in the order of the rows."""
    return [Sample(row.best.record.source, row.best.record.scale, row.best.point, row) for row in rows]
