"""Evaluates a grid, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable

from memcheck import __version__
from memcheck.check import plan_name
from memcheck.what_if.compare.build import ComparedPlan
from memcheck.what_if.points.evaluate import Evaluator
from memcheck.what_if.points.garbage import uncollected
from memcheck.what_if.sweep.grid import Grid
from memcheck.what_if.sweep.types import Sweep

EVERY = 64
"""Points between two reports of progress."""


def sweep(subject: ComparedPlan, grid: Grid, progress: Callable[[int], None] | None = None) -> Sweep:
    """The plan at every point of the grid. ``progress`` hears how many are done, now and then and at the end."""
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
