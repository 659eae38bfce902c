"""Where labels stand beside points of a plot, so that none lies over a point or over another label."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Spot = tuple[float, float]

_DIRECTIONS = tuple(math.radians(angle) for angle in (0, 180, 45, -45, 135, -135, 90, -90, 22, -22, 158, -158))
_NEAREST, _STEP, _RINGS = 3.0, 3.0, 40  # distances from a point, in the unit of the spots

_MISLEADING, _CROSSED = 4.0, 40.0  # as bad as so much of a covered label, in the square of the unit


class Box(NamedTuple):
    """A rectangle by its sides."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return wide * high if wide > 0 and high > 0 else 0.0

    def within(self, frame: "Box") -> bool:
        """Whether the frame holds all of it."""
        return (
            self.left >= frame.left
            and self.right <= frame.right
            and self.bottom >= frame.bottom
            and self.top <= frame.top
        )


@dataclass(frozen=True)
class Place:
    """A label's box, the point of its own that it stands beside, and how far from it."""

    box: Box
    point: Spot
    distance: float

    @property
    def nearest(self) -> Spot:
        """The spot of the box that is nearest to the point."""
        (x, y), box = self.point, self.box
        return min(max(x, box.left), box.right), min(max(y, box.bottom), box.top)

    def nearer_to(self, others: Sequence[Spot]) -> int:
        """How many points the label is as near to as to its own."""
        own = math.dist(self.nearest, self.point)
        return sum(math.dist(Place(self.box, other, 0.0).nearest, other) <= own for other in others)

    @property
    def leader(self) -> list[Spot]:
        """Spots on the way from the point to the label."""
        (x, y), (to_x, to_y) = self.point, self.nearest
        return [(x + (to_x - x) * part / 8, y + (to_y - y) * part / 8) for part in range(1, 9)]

    def leader_meets(self, box: Box) -> bool:
        """Whether another label, or a point, lies between this one and its point."""
        return any(box.left <= x <= box.right and box.bottom <= y <= box.top for x, y in self.leader)


def places(groups: Sequence[Sequence[Spot]], sizes: Sequence[Spot], frame: Box, marker: float) -> list[Place]:
    """A place for the label of each group of points: the nearest that is free, or else the one that covers least.

    The points of a group stand above each other, with a line through them. `sizes` are the labels' widths and heights,
    `marker` is a point's diameter; all in one unit.
    """
    half = marker / 2
    markers = {(x, y): Box(x - half, y - half, x + half, y + half) for points in groups for x, y in points}
    taken = [*markers.values(), *(_hull(points) for points in groups)]
    labels: list[Box] = []
    found: dict[int, Place] = {}
    for index in sorted(range(len(groups)), key=lambda index: (-sizes[index][1], -len(groups[index]), groups[index])):
        others = [point for point in markers if point not in groups[index]]
        best, least = None, math.inf
        for place in _candidates(groups[index], sizes[index], half):
            if not place.box.within(frame):
                continue
            cost = sum(place.box.overlap(other) for other in taken)
            if cost < least:
                cost += _MISLEADING * place.nearer_to(others) + _CROSSED * sum(
                    map(place.leader_meets, [*labels, *(markers[other] for other in others)])
                )
            if cost < least:
                best, least = place, cost
            if not cost:
                break
        best = best or next(_candidates(groups[index], sizes[index], half))
        found[index] = best
        labels.append(best.box)
        taken += [best.box, *(Box(x - 0.7, y - 0.7, x + 0.7, y + 0.7) for x, y in best.leader)]
    return [found[index] for index in range(len(groups))]


def _hull(points: Sequence[Spot]) -> Box:
    across, up = zip(*points, strict=True)
    return Box(min(across) - 0.5, min(up), max(across) + 0.5, max(up))


def _candidates(points: Sequence[Spot], size: Spot, half: float) -> Iterator[Place]:
    """Boxes around the points, the nearest first."""
    width, height = size
    for ring in range(_RINGS):
        distance = half + _NEAREST + _STEP * ring
        for x, y in points:
            for angle in _DIRECTIONS:
                across, up = math.cos(angle), math.sin(angle)
                middle = x + across * distance + width / 2 * _sign(across)
                centre = y + up * distance + height / 2 * _sign(up)
                box = Box(middle - width / 2, centre - height / 2, middle + width / 2, centre + height / 2)
                yield Place(box, (x, y), distance)


def _sign(part: float) -> int:
    """-1, 0 or 1, and 0 for what is nothing but rounding."""
    return 0 if abs(part) < 1e-9 else 1 if part > 0 else -1
