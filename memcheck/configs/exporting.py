"""The config that runs a plan: the plan is read, its layout is checked, and a format writes its job."""

from __future__ import annotations

import os
from collections.abc import Sequence

from memcheck.config.gate import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.configs.formats import export_plan
from memcheck.configs.types import Written
from memcheck.errors import MemcheckError, UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan
from memcheck.rules.located import located
from memcheck.rules.run import check_layout, make_context


class RefusedPlanError(MemcheckError):
    """A plan of which no config is written: it is wrong, or it trains nothing."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        """``findings``: what the check of the plan says; without an error among them, the plan trains nothing."""
        self.errors = tuple(each for each in findings if each.severity == "error")
        if self.errors:
            first = self.errors[0]
            super().__init__(f"{first.code} {first.message}", first.help or "correct the plan first")
        else:
            super().__init__("the plan is one for inference", "only training is exported")


def exported(document: Document, format: str) -> Written:
    """The config of one format for a plan. ``format``: a key of :data:`~memcheck.configs.formats.WRITTEN`.

    Raises:
        RefusedPlanError: the plan is wrong, or trains nothing.
    """
    plan, findings = read_plan(document)
    if plan is None:
        raise RefusedPlanError(findings)
    if plan.training is None:
        raise RefusedPlanError(())
    try:
        resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
    except (ResolutionError, UnsupportedError) as error:
        raise RefusedPlanError(located(error, document)) from None
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    found, possible = check_layout(context)
    if not possible:
        raise RefusedPlanError(found)
    return export_plan(plan, resolved, format, document.path)
