"""A guard where the job runs: a training job that will not fit ends before its first step."""

from memcheck.guard.callback import MemcheckCallback, WillNotFit, before_training

__all__ = ["MemcheckCallback", "WillNotFit", "before_training"]
