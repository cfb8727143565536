"""The measured cases that an interval is based on, to explain it, and a job's interval from the tables as they are
stored.
"""

from __future__ import annotations

from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.allocator import allocator_group, stuck_group
from memcheck.memory.interval import Intervals, PlanFigures, ends, error_group, interval_kinds
from memcheck.memory.residuals import look_up, residuals


def intervals(job: TrainingJob | InferenceJob, held: PlanFigures, capacity: int | None) -> Intervals:
    """The intervals of ``needed`` and of what is seen, in bytes. ``capacity``: None for a GPU without a limit."""
    return ends(residuals(), interval_kinds(job), held, capacity)


def interval_basis(job: TrainingJob | InferenceJob) -> tuple[str, int]:
    """Which errors the interval of ``needed`` is based on, and on how many cases."""
    tables, group = residuals(), error_group(job)
    errors, own = look_up(tables.allocated, group, by_method=True)
    kept, allocator = look_up(tables.tight, stuck_group(allocator_group(job)))
    return f"{errors}; allocator: {kept}", min(own.n, allocator.n)
