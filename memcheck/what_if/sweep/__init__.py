"""Evaluates a plan on a grid: the axes, the points that they span, and the figures of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product

from memcheck import __version__
from memcheck.edge.libyaml import yaml
from memcheck.errors import UsageError
from memcheck.judge import plan_name
from memcheck.record import Record
from memcheck.what_if.compare import ComparedPlan
from memcheck.what_if.points import Evaluator, Point, uncollected

MOST_POINTS = 1_000_000
"""More is a slip of the keyboard."""
MOST_VALUES = 10_000
EVERY = 64
"""Points between two reports of progress."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class Axis(Record):
    """One key and the values that it takes."""

    key: str
    values: tuple[object, ...]


def axis(written: str) -> Axis:
    """Return ``KEY=V1,V2,...``; values are read as YAML, as in the plan; ``1..8`` is every whole number from 1 to 8.

    Raises:
        ValueError: not of that form.
    """
    key, equals, text = written.partition("=")
    if not equals or not all(key.split(".")) or not text.strip():
        raise ValueError(f"{written!r} is not of the form training.micro_batch_size=1,2,4")
    try:
        found: list[object] = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"the values of {key} are not YAML: {text!r}") from error
    values: list[object] = []
    for value in found:
        values += _range(key, value) if isinstance(value, str) else [value]
    if len({repr(value) for value in values}) < len(values):
        raise ValueError(f"{key} has a value twice: {text!r}")
    return Axis(key, tuple(values))


def _range(key: str, text: str) -> list[object]:
    """Return the whole numbers of ``1..8``, or the text itself if it is no range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST_VALUES:
        raise ValueError(f"the range {text} of {key} does not go up, or has more than {MOST_VALUES:,} values")
    return list(range(first, last + 1))


class SweepGrid(Record):
    """All combinations of the axes' values; the last axis changes fastest."""

    axes: tuple[Axis, ...]

    def points(self) -> Iterator[dict[str, object]]:
        """Yield the changes of every point."""
        keys = [each.key for each in self.axes]
        for values in product(*(each.values for each in self.axes)):
            yield dict(zip(keys, values, strict=True))

    @property
    def size(self) -> int:
        """Number of points."""
        points = 1
        for each in self.axes:
            points *= len(each.values)
        return points


def grid(axes: tuple[Axis, ...]) -> SweepGrid:
    """Return the grid of several axes.

    Raises:
        UsageError: no axis, one key twice or inside another, or too many points.
    """
    if not axes:
        raise UsageError("no axis to sweep", "name one: --set training.micro_batch_size=1,2,4")
    keys = [each.key for each in axes]
    for index, key in enumerate(keys):
        for other in keys[:index]:
            if key == other or key.startswith(other + ".") or other.startswith(key + "."):
                raise UsageError(f"--set {other} and --set {key} set the same key", "name each key once")
    found = SweepGrid(axes)
    if found.size > MOST_POINTS:
        raise UsageError(f"{found.size:,} points are more than {MOST_POINTS:,}", "sweep fewer values")
    return found


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


def sweep(subject: ComparedPlan, grid: SweepGrid, progress: Callable[[int], None] | None = None) -> Sweep:
    """Return the plan at every point of the grid. ``progress`` hears how many are done, now and then and at the end."""
    evaluator = Evaluator(subject.document, subject.gate)
    points = []
    with uncollected():
        for done, changes in enumerate(grid.points(), 1):
            points.append(evaluator.point(changes))
            if progress is not None and (done % EVERY == 0 or done == grid.size):
                progress(done)
    return Sweep(
        version=__version__,
        plan=plan_name(subject.document),
        path=subject.document.path,
        axes=grid.axes,
        points=tuple(points),
    )
