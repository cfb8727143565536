"""What the answer depends on: findings, the interval, assumptions, formulas."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.edge.text import between, gib, percent, plural, value
from memcheck.finding import Finding
from memcheck.report.seen import formula_head
from memcheck.report.snippet import snippet
from memcheck.report.story.blocks import ComponentFormula, Excerpt, Excerpts, Formulas, Prose, Section, Table
from memcheck.result import PlanResult

TONES = {"error": "bad", "warning": "warn", "info": "note"}
SOURCE = Screen(width=88, color=True)
"""Source lines are cut for a page, not for the terminal that the report was asked for on."""


def findings(plan: PlanResult) -> Section | None:
    """Every finding with its lines."""
    if not plan.findings:
        return None
    count = plural(len(plan.findings), "finding")
    return Section("findings", f"{count} in the plan", (Excerpts(tuple(excerpt(plan, f) for f in plan.findings)),))


def excerpt(plan: PlanResult, finding: Finding) -> Excerpt:
    """One finding as an excerpt: head, message, source lines, help."""
    return Excerpt(
        tone=TONES[finding.severity],
        head=f"{finding.severity} {finding.code} {finding.name}",
        message=finding.message,
        source="\n".join(snippet(finding, plan.sources, SOURCE)),
        help=finding.help,
    )


def certainty(plan: PlanResult, estimate: Estimate) -> Section:
    """The interval and how it was measured; the quantities to compare with."""
    text = (
        f"What is needed lies {between(estimate.needed_interval_bytes)} GiB (95% interval). These are the largest"
        " errors that the prediction was seen to make, with what the allocator was seen to be unable to return. The"
        f" verdict goes by it. What is seen, with the allocator's cache, lies {between(estimate.interval_bytes)} GiB."
    )
    if plan.dossier is not None:
        text += (
            f" They were taken on plans of this kind ({plan.dossier.basis}; at least"
            f" {plural(plan.dossier.cases, 'case')}), against traced PyTorch steps and measured runs: docs/accuracy.md."
        )
    if plan.settled_by:
        text += f" To settle whether the plan fits: {plan.settled_by}."
    if plan.rests_on:
        rests = (
            f"{each.key}: {value(each.value)} (it would be {percent(each.utilization)} with {value(each.other)})"
            for each in plan.rests_on
        )
        text += f" The figure of {percent(estimate.utilization)} assumes {', '.join(rests)}."
    rows = [
        ("allocated", gib(estimate.allocated_bytes), "torch.cuda.max_memory_allocated()"),
        ("needed", gib(estimate.needed_bytes), "the smallest GPU on which the step runs"),
        ("reserved, cache included", gib(estimate.reserved_bytes), "torch.cuda.max_memory_reserved()"),
        ("seen, cache included", gib(estimate.device_bytes), "nvidia-smi"),
        ("capacity", gib(estimate.capacity_bytes), "torch.cuda.mem_get_info()"),
    ]
    if estimate.host_bytes_per_node:
        rows.append(("host memory of a node", gib(estimate.host_bytes_per_node), _host_words(estimate)))
    table = Table(
        "Predicted, and what shows the same on a machine", ("Quantity", "GiB", "compare with"), tuple(rows), right=(1,)
    )
    return Section("certainty", "How sure this is", (Prose(text), table))


def assumptions(plan: PlanResult) -> Section | None:
    """Every value that was used and not stated."""
    if not plan.assumptions:
        return None
    table = Table(
        "Used because the plan does not say",
        ("Key", "value", "why"),
        tuple((item.key, value(item.value), item.why) for item in plan.assumptions),
        code=(0, 1),
    )
    return Section("assumptions", "Assumptions", (table,))


def formulas(estimate: Estimate) -> Section | None:
    """The arithmetic of every component at the peak."""
    if not estimate.formulas:
        return None
    found = tuple(
        ComponentFormula(
            key=key,
            name=name,
            figure=f"{gib(item.bytes)} GiB ({item.bytes:,} bytes)",
            lines=(item.formula, f"= {item.numbers}"),
            source=item.source,
        )
        for item in estimate.formulas
        for key, name in (formula_head(item),)
    )
    return Section("formulas", "Formulas and their sources", (Formulas(found),), folded=True)


def _host_words(estimate: Estimate) -> str:
    """When the memory of a node is fullest."""
    moment = estimate.host_moment
    return f"{moment.name}: {moment.operation}" if moment is not None else ""
