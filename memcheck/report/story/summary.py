"""A plan in a few lines, and a run in one."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import between, gib, percent, plural, value, words
from memcheck.memory.fit import DOES_NOT_FIT, FITS, RUNS, UNCERTAIN, gpu_fit
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose
from memcheck.rules.result import BASELINE, COMMENT, PASSED, SELECTION, PlanResult, Report

LABELS = {"passed": ("pass", "good"), "failed": ("fail", "bad"), "error": ("fail", "bad")}
TOP_COMPONENTS = 3
HIDDEN = {COMMENT: "comments", BASELINE: "the baseline", SELECTION: "the choice of rules"}
WORDS_OF = (
    {FITS: "fits", UNCERTAIN: "uncertain", DOES_NOT_FIT: "does not fit"},
    {FITS: "fit", UNCERTAIN: "uncertain", DOES_NOT_FIT: "do not fit"},
)
"""The verdicts after one plan, and after several."""


def plan_summary(plan: PlanResult, estimate: Estimate, *, with_host: bool = True) -> PlanSummary:
    """Verdict, name and path; the bar with its numbers; the largest components and what the verdict assumes.

    ``with_host``: with a line on the memory of a node, which nothing else has shown.
    """
    lines: list[Prose | Fitting] = [facts(plan, estimate)]
    if estimate.engine is not None:
        from memcheck.report.story.findings import line

        lines.append(Prose(line(estimate.engine)))
    if plan.status == PASSED and plan.rests_on:
        lines.append(grounds(plan))
    if with_host and (told := host(plan, estimate)) is not None:
        lines.append(told)
    if plan.accepted:
        from memcheck.report.verdict import accepted

        lines.append(Prose(f"accepted: {'; '.join(accepted(plan))}", "dim"))
    return PlanSummary(head(plan), gauge(plan, estimate), tuple(lines))


def head(plan: PlanResult) -> PlanHead:
    """The name of a plan with its verdict."""
    word, tone = ("accepted", "dim") if plan.accepted else LABELS[plan.status]
    return PlanHead(name=plan.name, path=plan.path, word=word, tone=tone)


def gauge(plan: PlanResult, estimate: Estimate) -> Gauge:
    """The memory of a plan's GPUs as a bar."""
    capacity = estimate.capacity_bytes
    need = gib(estimate.needed_bytes).rjust(6)
    return Gauge(
        needed_bytes=estimate.needed_bytes,
        seen_bytes=estimate.device_bytes,
        capacity_bytes=capacity,
        limit_bytes=int(capacity * _limit(plan, estimate)),
        tone=gpu_tone(plan, estimate),
        share=percent(estimate.utilization),
        numbers=f"{need} of {gib(capacity)} GiB, {between(estimate.needed_interval_bytes)}",
    )


def _limit(plan: PlanResult, estimate: Estimate) -> float:
    """The share of a GPU up to which a plan may go: its limit, or that of its serving engine."""
    if estimate.engine is not None and estimate.engine.settings.share is not None:
        return estimate.engine.settings.share
    return min(plan.fail_above, 1.0)


def gpu_tone(plan: PlanResult, estimate: Estimate) -> str:
    """The tone of a plan's memory: ``bad`` where it does not run, ``warn`` where that is uncertain or a rule warns."""
    fit = gpu_fit(estimate, plan.fail_above)
    if fit not in RUNS:
        return "bad"
    return "warn" if fit == UNCERTAIN or plan.count("warning") else "good"


def facts(plan: PlanResult, estimate: Estimate) -> Fitting:
    """GPUs and framework, the instant of the peak, and the largest components."""
    where = f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu
    rank = f" on pipeline rank {estimate.pipeline_rank}" if len(estimate.ranks) > 1 else ""
    lead = "; ".join(part for part in (where, plan.framework, f"peak in {estimate.instant}{rank}") if part)
    largest = sorted(estimate.needed_parts_bytes.items(), key=lambda item: -item[1])[:TOP_COMPONENTS]
    parts = [f"{words(name)} {gib(count)}" for name, count in largest if count]
    return Fitting(lead, tuple(f"{', ' if number else ': '}{part}" for number, part in enumerate(parts)))


def grounds(plan: PlanResult) -> Fitting:
    """The assumptions that move the figure, those that move it most first, and how many more there are."""
    told = []
    for each in plan.rests_on:
        key = each.key.partition(".")[2]
        told.append(f"{key}: {value(each.value)} ({percent(each.utilization)} with {value(each.other)})")
    parts = tuple(f"{', ' if number else ''}{text}" for number, text in enumerate(told))
    left = [len(told) - count + plan.untried for count in range(len(told) + 1)]
    ends = tuple(f"; {count} more in memcheck estimate" if count else "" for count in left)
    return Fitting("assumes ", parts, ends, least=1)


def host(plan: PlanResult, estimate: Estimate) -> Prose | None:
    """The memory of a node that the processes need, and when; None where the plan does not state what a node has."""
    moment, capacity = estimate.host_moment, plan.host_capacity_bytes
    if moment is None or capacity is None:
        return None
    slack = capacity - moment.bytes
    text = (
        f"host memory of a node: {gib(moment.bytes)} of {gib(capacity)} GiB in {moment.name} ({moment.operation}), "
        f"{gib(abs(slack))} {'missing' if slack < 0 else 'left'}"
    )
    return Prose(text, "bad" if slack < 0 else "")


def summary(report: Report) -> str:
    """``checked 12 plans: 7 passed, 5 failed (6 errors, 2 warnings), hidden: 1 by comments``.

    Where a plan is uncertain, the verdicts come first: ``checked 3 plans: 1 fits, 1 uncertain, 1 does not fit; ...``.
    """
    accepted = f", {report.accepted} accepted" if report.accepted else ""
    passed = f"{report.passed - report.accepted} passed{accepted}"
    text = f"checked {plural(len(report.plans), 'plan')}: {by_verdict(report)}{passed}, {report.failed} failed"
    nouns = {"error": "error", "warning": "warning", "info": "note"}
    counts = [plural(count, noun) for severity, noun in nouns.items() if (count := report.count(severity))]
    if counts:
        text += f" ({', '.join(counts)})"
    hidden = [f"{count} by {words}" for by, words in HIDDEN.items() if (count := report.hidden(by))]
    if hidden:
        text += f", hidden: {', '.join(hidden)}"
    if report.unchanged:
        text += f", {plural(report.unchanged, 'file')} unchanged"
    if report.elsewhere:
        text += f", {plural(report.elsewhere, 'file')} in other shards"
    if report.unreadable:
        text += f", {plural(len(report.unreadable), 'path')} not readable"
    return text


def by_verdict(report: Report) -> str:
    """``1 fits, 2 uncertain, 3 do not fit; ``, or nothing where no plan is uncertain: the statuses then say it all."""
    found = report.verdicts
    if not found[UNCERTAIN]:
        return ""
    singular, several = WORDS_OF
    parts = [f"{count:,} {(singular if count == 1 else several)[each]}" for each, count in found.items() if count]
    left = len(report.plans) - sum(found.values())
    return f"{', '.join([*parts, *([f'{left:,} not estimated'] if left else [])])}; "


def summary_tone(report: Report) -> str:
    """The tone of the summary: the gravest of what it counts."""
    return "bad" if report.failed or report.unreadable else "warn" if report.count("warning") else "good"
