"""Options of a framework that move memory and have no model: an error, never a guess."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import TrainingJob


def unmodelled(job: TrainingJob) -> UnsupportedError | None:
    """Why the job cannot be priced, if one of its options says something else than what is priced."""
    framework = FRAMEWORKS[job.framework]
    for name, value in job.options:
        if name not in framework.unmodelled:
            continue
        priced, does = framework.unmodelled[name]
        if value != priced and (value or priced):
            message = f"`{name}` {does}, of which memcheck has no model"
            return UnsupportedError(message, "leave it out to get the figure without it", f"/training/options/{name}")
    return None
