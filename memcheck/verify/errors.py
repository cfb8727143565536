"""Why a step could not be observed."""

from __future__ import annotations

from memcheck.errors import MemcheckError


class UntraceableError(MemcheckError):
    """The plan asks for something that nothing on this machine can stand for."""


class RefusedStepError(MemcheckError):
    """PyTorch, transformers or PEFT would not build or run the step."""
