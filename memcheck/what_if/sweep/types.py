"""The answer to a sweep."""

from __future__ import annotations

from memcheck.record import Record
from memcheck.what_if.points.types import Point
from memcheck.what_if.sweep.grid import Axis


class Sweep(Record):
    """Every point of a grid, in its order."""

    version: str
    plan: str
    path: str
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    def count(self, verdict: str) -> int:
        """Points of one verdict."""
        return sum(point.verdict == verdict for point in self.points)
