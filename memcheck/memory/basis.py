"""The measured cases that an interval is based on, to explain it, and a job's interval from the tables as they are
stored.
"""

from __future__ import annotations

from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.allocator import allocator_group, stuck_group
from memcheck.memory.interval import Intervals, PlanFigures, ends, error_group, interval_kinds
from memcheck.memory.residuals import look_up, residuals


def intervals(job: TrainingJob | InferenceJob, held: PlanFigures, capacity: int | None) -> Intervals:
    """Return the intervals, in bytes, of what a plan needs and of what ``nvidia-smi`` would show.

    ``held``: the plan's predicted figures. ``capacity``: bytes of the GPU; None: no limit.
    """
    return ends(residuals(), interval_kinds(job), held, capacity)


def interval_basis(job: TrainingJob | InferenceJob) -> tuple[str, int]:
    """Return the names of the measured groups that the interval of needed bytes is based on, and their fewest cases."""
    tables, group = residuals(), error_group(job)
    errors = look_up(tables.allocated, group, by_method=True)
    allocator = look_up(tables.tight, stuck_group(allocator_group(job)))
    return f"{errors.groups}; allocator: {allocator.groups}", min(errors.spread.n, allocator.spread.n)
