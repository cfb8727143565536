"""Options of a framework that move memory and have no model: an error, never a guess."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import TrainingJob


def refuse(job: TrainingJob) -> None:
    """Nothing, unless an option says something else than what is priced.

    Raises:
        UnsupportedError: one does.
    """
    framework = FRAMEWORKS[job.framework]
    for name, value in job.options:
        if name not in framework.unmodelled:
            continue
        priced, does = framework.unmodelled[name]
        if value != priced and (value or priced):
            message = f"`{name}` {does}, of which memcheck has no model"
            raise UnsupportedError(message, "leave it out to get the figure without it", f"/training/options/{name}")
