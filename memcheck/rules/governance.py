"""What a configuration lays down for every plan, and no plan may change.

How many GPU hours a run takes whose steps the plan states.
"""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.record import Record
from memcheck.rules.types import RuleContext
from memcheck.timing.step import step_time

DEFAULT_LOCKED_RULES = ("MEM1", "MEM6")
"""Memory and policy: what a comment in a plan may not hide under ``locked``."""


class Governance(Record):
    """The table ``[policy]`` of a configuration. None, and an empty list, means: not laid down."""

    locked: bool = False
    """Plans may be stricter than the configured limits and overhead, and no milder."""
    locked_rules: tuple[str, ...] = DEFAULT_LOCKED_RULES
    """Codes, or prefixes of codes, that no comment hides while ``locked``."""
    allowed_gpus: tuple[str, ...] = ()
    """Names of GPUs, as the catalog or the plans have them; ``*`` stands for anything."""
    max_gpus: int | None = None
    max_gpu_hours: float | None = None
    forbid_suppressions: bool = False
    """Whether no comment may hide a finding."""
    require_interval: bool = False
    """The upper end of the 95 % interval has to fit, too."""
    forbid_unseen: bool = False
    """No folder that a search leaves out may hold a plan."""

    def locks(self, code: str) -> bool:
        """Whether no comment may hide findings of a rule."""
        return self.forbid_suppressions or (self.locked and code.startswith(self.locked_rules))


def gpu_hours(context: RuleContext) -> float | None:
    """Steps x seconds of a step x GPUs; None without ``training.steps``, or where a step has no modelled time."""
    job, training = context.training, context.plan.training
    if job is None or training is None or training.steps is None:
        return None
    try:
        seconds = step_time(job, context.resolved.gpu).seconds
    except UnsupportedError:
        return None
    return training.steps * seconds * context.layout.world_size / 3600
