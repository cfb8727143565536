"""A lower bound of a job's peak that costs a fraction of an estimate: the resident bytes on the fullest rank between
steps.

The resident states are live at every instant of a step, so that no peak lies below them. A search leaves out plans that
do not even hold their states, without replaying a single activation.
"""

from __future__ import annotations

from memcheck.frameworks.registry import stack_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Rough


def states_floor(job: TrainingJob) -> int:
    """Return the bytes of resident states on the fullest rank: no peak of the job is lower. 0: no bound is known."""
    if isinstance(job.architecture, Rough):
        return 0
    return stack_of(job.framework).states_floor(job, job.architecture)
