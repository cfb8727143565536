"""Run the rules over one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from memcheck.job.resolve import Resolved
from memcheck.job.types import TrainingJob
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.types import Plan
from memcheck.record import Record
from memcheck.rules.checks import BEYOND_GATE, CHECKS
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import Gated

Asked = Gated | Rule
"""A rule of the gate, which is loaded when it is needed, or one of another profile."""


def make_context(
    plan: Plan, document: Document, resolved: Resolved, *, fail_above: float, warn_above: float
) -> RuleContext:
    """Return what the rules look at. The plan's own policy goes before the configured thresholds."""
    policy = plan.policy
    job = resolved.job
    return RuleContext(
        plan=plan,
        document=document,
        resolved=resolved,
        framework=job.framework if isinstance(job, TrainingJob) else None,
        fail_above=fail_above if policy.fail_above is None else policy.fail_above,
        warn_above=warn_above if policy.warn_above is None else policy.warn_above,
        waste_below=policy.waste_below,
        uncertain=policy.uncertain or "warn",
        unpacked=policy.unpacked or "warn",
    )


def rules_for(counts: Callable[[str], bool]) -> tuple[Asked, ...]:
    """The checks to run: all of the gate, since any of them may keep a plan from being judged, and those that count."""
    wanted = [code for code in BEYOND_GATE if counts(code)]
    if not wanted:
        return CHECKS
    from memcheck.rules.further import FURTHER

    return (*CHECKS, *(rule for rule in FURTHER if rule.code in wanted))


class Standing(Record):
    """The findings of some rules, and whether one of them blocks the estimate."""

    findings: tuple[tuple[int, Finding], ...] = ()
    """Each with its rule's place."""
    blocked: bool = False


def check_layout(
    context: RuleContext, rules: Sequence[Asked] = CHECKS, standing: Standing | None = None
) -> tuple[list[Finding], bool]:
    """Return the findings that need no estimate, and whether the job could start as written.

    ``standing``: :func:`check_standing` of a plan that differs in its batch alone, if it is known.
    """
    standing = standing or check_standing(context, rules)
    of_batch = _found(context, _layout_checks(rules)[1])
    if not standing.findings and not of_batch.findings:
        return [], True
    placed = sorted((*standing.findings, *of_batch.findings), key=itemgetter(0))
    found, blocked = [finding for _, finding in placed], standing.blocked or of_batch.blocked
    if blocked:
        from memcheck.rules.layout import joined

        codes = {rule.code for rule in rules if rule.blocking}
        fatal = [each for each in found if each.code in codes and each.severity == "error"]
        if len(fatal) > 1:
            kept = joined(context, fatal, lambda other: _starts(other, rules))
            found = [*kept, *(each for each in found if each not in fatal)]
    return found, not blocked


def _starts(context: RuleContext, rules: Sequence[Asked]) -> bool:
    """Whether no blocking rule finds an error."""
    return not any(_found(context, checks).blocked for checks in _layout_checks(rules))


def check_standing(context: RuleContext, rules: Sequence[Asked] = CHECKS) -> Standing:
    """The findings of the rules that need no estimate and do not read the batch."""
    return _found(context, _layout_checks(rules)[0])


def _found(context: RuleContext, checks: Checks) -> Standing:
    placed: list[tuple[int, Finding]] = []
    blocked = False
    for number, check, blocking in checks:
        found = list(check(context))
        if found:
            placed += [(number, finding) for finding in found]
            blocked = blocked or (blocking and any(f.severity == "error" for f in found))
    return Standing(tuple(placed), blocked)


Checks = list[tuple[int, Callable[[RuleContext], Iterable[Finding]], bool]]
"""Places among the rules, checks, and whether an error of theirs blocks."""
_gate: list[Checks] = []
"""The checks of ``CHECKS`` that need no estimate; found once, because a search runs them thousands of times."""


def _layout_checks(rules: Sequence[Asked]) -> list[Checks]:
    """Return checks that need no estimate: those that read no batch, and those that do."""
    if rules is CHECKS and _gate:
        return _gate
    found: list[Checks] = [[], []]
    for number, rule in enumerate(rules):
        if rule.check is not None and not rule.needs_estimate:
            found[rule.batch].append((number, rule.check, rule.blocking))
    if rules is CHECKS:
        _gate.extend(found)
    return found


POLICY = "MEM6"
"""Codes of findings about what a plan may say, not about the job that it describes."""


def is_legal(context: RuleContext, allowed: frozenset[str], standing: Standing) -> bool:
    """Say whether no rule that needs no estimate finds an error, or anything with a code that is not ``allowed``.

    The verdict of :func:`check_layout`, for a search that throws the findings away: it stops at the first one.
    ``standing``: :func:`check_standing` of a plan that differs in its batch alone. What a plan may say says nothing of
    whether its job can run.
    """
    for _, finding in standing.findings:
        if not finding.code.startswith(POLICY) and (finding.severity == "error" or finding.code not in allowed):
            return False
    for _, check, _ in _layout_checks(CHECKS)[1]:
        for finding in check(context):
            if not finding.code.startswith(POLICY) and (finding.severity == "error" or finding.code not in allowed):
                return False
    return True


def check_memory(context: RuleContext, rules: Sequence[Asked] = CHECKS) -> list[Finding]:
    """Return the findings about an estimate."""
    if context.estimate is None:
        return []
    return [f for rule in rules if rule.check is not None and rule.needs_estimate for f in rule.check(context)]
