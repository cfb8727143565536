"""Why a step could not be observed."""

from __future__ import annotations

from memcheck.errors import MemcheckError


class UntraceableError(MemcheckError):
    """Nothing that can be run here stands for what the plan asks."""


class RefusedStepError(MemcheckError):
    """PyTorch, transformers or PEFT would not build or run the step."""
