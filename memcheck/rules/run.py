"""Run the rules over one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from memcheck.finding import Finding
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved
from memcheck.job.types import TrainingJob
from memcheck.plan.types import Plan
from memcheck.rules.checks import BEYOND_GATE, CHECKS
from memcheck.rules.types import Context, Rule
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


def rules_for(counts: Callable[[str], bool]) -> tuple[Rule, ...]:
    """The checks to run: all of the gate, since any of them may keep a plan from being judged, and those that count."""
    wanted = [code for code in BEYOND_GATE if counts(code)]
    if not wanted:
        return CHECKS
    from memcheck.rules.further import FURTHER

    return (*CHECKS, *(rule for rule in FURTHER if rule.code in wanted))


def check_layout(context: Context, rules: Sequence[Rule] = CHECKS) -> tuple[list[Finding], bool]:
    """The findings that need no estimate, and whether the job could start as written."""
    findings: list[Finding] = []
    blocked = False
    for check, blocking in _layout_checks(rules):
        found = list(check(context))
        if found:
            findings.extend(found)
            blocked = blocked or (blocking and any(f.severity == "error" for f in found))
    return findings, not blocked


_gate: list[tuple[Callable[[Context], Iterator[Finding]], bool]] = []
"""The checks of ``CHECKS`` that need no estimate; found once, because a search runs them thousands of times."""


def _layout_checks(rules: Sequence[Rule]) -> list[tuple[Callable[[Context], Iterator[Finding]], bool]]:
    """Checks that need no estimate, and whether an error of theirs blocks."""
    if rules is CHECKS and _gate:
        return _gate
    found = [(rule.check, rule.blocking) for rule in rules if rule.check is not None and not rule.needs_estimate]
    if rules is CHECKS:
        _gate.extend(found)
    return found


def is_legal(context: Context, allowed: frozenset[str]) -> bool:
    """Whether no rule that needs no estimate finds an error, or anything with a code that is not ``allowed``.

    The verdict of :func:`check_layout`, for a search that throws the findings away: it stops at the first one.
    """
    for check, _ in _layout_checks(CHECKS):
        for finding in check(context):
            if finding.severity == "error" or finding.code not in allowed:
                return False
    return True


def check_memory(context: Context, rules: Sequence[Rule] = CHECKS) -> list[Finding]:
    """The findings about an estimate."""
    if context.estimate is None:
        return []
    return [f for rule in rules if rule.check is not None and rule.needs_estimate for f in rule.check(context)]
