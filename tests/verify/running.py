"""Runs steps for the tests that need PyTorch."""

from __future__ import annotations

import io
from typing import Any

from memcheck.verify.compare import TRACED, Observation, RankComparison
from memcheck.verify.observe import Progress, Request, compare_all, observe, runnable
from tests.verify.plans import subject


def silent() -> Progress:
    """A progress that nobody reads."""
    return Progress(io.StringIO(), terminal=False)


def traced(plan: dict[str, Any], *ranks: int) -> tuple[Request, Observation, tuple[RankComparison, ...]]:
    """Trace a plan's step and compare."""
    request = runnable(subject(plan))
    observation = observe(request, TRACED, silent(), ranks)
    return request, observation, compare_all(request, observation)
