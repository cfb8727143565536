"""Run the rules over one plan."""

from __future__ import annotations

from memcheck.finding import Finding
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved
from memcheck.job.types import TrainingJob
from memcheck.plan.types import Plan
from memcheck.rules.checks import CHECKS
from memcheck.rules.types import Context
from memcheck.source.types import Document


def make_context(
    plan: Plan, document: Document, resolved: Resolved, *, fail_above: float, warn_above: float
) -> Context:
    """What the rules look at. The plan's own policy goes before the configured thresholds."""
    policy = plan.policy
    job = resolved.job
    return Context(
        plan=plan,
        document=document,
        resolved=resolved,
        framework=FRAMEWORKS[job.framework] if isinstance(job, TrainingJob) else None,
        fail_above=fail_above if policy.fail_above is None else policy.fail_above,
        warn_above=warn_above if policy.warn_above is None else policy.warn_above,
        waste_below=policy.waste_below,
    )


def check_layout(context: Context) -> tuple[list[Finding], bool]:
    """The findings that need no estimate, and whether the job could start as written."""
    findings: list[Finding] = []
    blocked = False
    for rule in CHECKS:
        if rule.check is None or rule.needs_estimate:
            continue
        found = list(rule.check(context))
        findings.extend(found)
        blocked = blocked or (rule.blocking and any(f.severity == "error" for f in found))
    return findings, not blocked


def check_memory(context: Context) -> list[Finding]:
    """The findings about an estimate."""
    if context.estimate is None:
        return []
    return [f for rule in CHECKS if rule.check is not None and rule.needs_estimate for f in rule.check(context)]
