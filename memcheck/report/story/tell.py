"""Makes the content of HTML and PDF reports from results: text, tables and charts without a layout."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.text import between, gib, percent, plural
from memcheck.report.seen import cache_note
from memcheck.report.story import choices, grounds, memory
from memcheck.report.story.blocks import PlanStory, Section, Story
from memcheck.report.summary import summary
from memcheck.report.verdict import host_decides, lead, pressure, verdict
from memcheck.result import PlanResult, Report


def story(report: Report, *, judged: bool = True) -> Story:
    """The whole report; not ``judged``: figures without findings, but where findings are all there is."""
    count = len(report.plans)
    only = f" of {report.plans[0].name}" if count == 1 else ""
    said = summary(report) if judged else f"estimated {plural(count, 'plan')}"
    return Story(
        title=f"GPU memory{only}" if count == 1 else f"GPU memory of {plural(count, 'plan')}",
        summary=said,
        plans=tuple(plan_story(plan, judged=judged or plan.estimate is None) for plan in report.plans),
        unreadable=tuple((item.path, item.message) for item in report.unreadable),
        version=report.version,
    )


def plan_story(plan: PlanResult, *, judged: bool) -> PlanStory:
    """The sections of the report on one plan. ``judged``: with findings and a verdict; else figures alone."""
    estimate = plan.estimate
    found: list[Section | None] = [grounds.findings(plan)] if judged else []
    if estimate is not None:
        found = [
            memory.components(plan, estimate),
            memory.step(plan, estimate),
            memory.host(plan, estimate),
            choices.remedies(plan, estimate),
            choices.gpus(plan, judged=judged),
            memory.ranks(plan, estimate),
            memory.tensors(plan, estimate),
            *found,
            grounds.certainty(plan, estimate),
        ]
    found += [grounds.assumptions(plan), grounds.formulas(estimate) if estimate is not None else None]
    document = f", document {plan.document}" if plan.document else ""
    return PlanStory(
        name=plan.name,
        path=f"{plan.path}{document}",
        verdict=verdict(plan, judged=judged),
        lead=lead(plan, judged=judged),
        advice=choices.advice(plan),
        facts=facts(plan),
        pictures=memory.pictures(plan, estimate) if estimate is not None else (),
        used=used(plan),
        sections=tuple(section for section in found if section is not None),
    )


def used(plan: PlanResult) -> str:
    """How full the memory is that decides."""
    if plan.estimate is None:
        return ""
    return f"{percent(pressure(plan))} of host" if host_decides(plan) else percent(plan.estimate.utilization)


def facts(plan: PlanResult) -> tuple[tuple[str, str], ...]:
    """What runs where, and the figures that people ask for first."""
    estimate = plan.estimate
    where = f"{plan.gpus:,} × {plan.gpu}" if plan.gpus else plan.gpu
    rows = [("GPUs", where), ("Model", plan.model), ("Framework", plan.framework)]
    if estimate is not None:
        rows = [
            ("Used of each GPU", percent(estimate.utilization)),
            ("95% interval", f"{between(estimate.needed_interval_bytes)} GiB"),
            ("Seen with the cache", f"{gib(estimate.device_bytes)} GiB" if cache_note(estimate) else ""),
            *host_facts(plan, estimate),
            *rows,
            ("Parameters", counted(estimate.parameters)),
        ]
        if 0 < estimate.trainable_parameters != estimate.parameters:
            rows.append(("Trained", counted(estimate.trainable_parameters)))
    return tuple(row for row in rows if row[1])


def host_facts(plan: PlanResult, estimate: Estimate) -> list[tuple[str, str]]:
    """What a node needs, where the plan says what it has."""
    if plan.host_capacity_bytes is None or not estimate.host_bytes_per_node:
        return []
    return [("Host memory of a node", f"{gib(estimate.host_bytes_per_node)} of {gib(plan.host_capacity_bytes)} GiB")]


def counted(parameters: int) -> str:
    """A number of parameters in words: ``8.03 billion``."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if parameters >= size:
            return f"{parameters / size:.2f} {name}"
    return f"{parameters:,}"
