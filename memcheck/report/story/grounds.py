"""What the answer depends on: the interval, assumptions, formulas."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.text import between, gib, percent, plural, value
from memcheck.report.story import Prose
from memcheck.report.story.blocks import ComponentFormula, Fact, Facts, Formulas, Section, Table
from memcheck.report.story.memory import formula_head, host_fact, interval, peak
from memcheck.result import PlanResult


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
            f" {plural(plan.dossier.cases, 'case')}), against traced PyTorch steps and measured runs: docs/trust.md."
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
    found = arithmetic(estimate)
    return None if found is None else Section("formulas", "Formulas and their sources", (found,), folded=True)


def arithmetic(estimate: Estimate) -> Formulas | None:
    """Every formula with its numbers, its result and its source; None where formulas were not asked for."""
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
    return Formulas("formulas", found) if found else None


def totals(plan: PlanResult, estimate: Estimate) -> Facts:
    """The quantities that one compares with torch and nvidia-smi, and what the answer assumes."""
    total = (
        f"allocated {gib(estimate.allocated_bytes)}, needed {gib(estimate.needed_bytes)} GiB,"
        f" {interval(estimate.needed_interval_bytes)}"
    )
    seen = (
        f"reserved {gib(estimate.reserved_bytes)}, nvidia-smi {gib(estimate.device_bytes)} GiB with the cache,"
        f" {interval(estimate.interval_bytes)}"
    )
    rows = [Fact("peak", peak(estimate)), Fact("total", total), Fact("seen", seen)]
    if plan.settled_by:
        rows.append(Fact("uncertain", f"to settle it: {plan.settled_by}"))
    if plan.rests_on:
        grounds = (
            f"{each.key}: {value(each.value)} (with {value(each.other)}: {percent(each.utilization)})"
            for each in plan.rests_on
        )
        rows.append(Fact("assumes", "; ".join(grounds)))
    if estimate.host_bytes_per_node and plan.host_capacity_bytes is None:
        rows += host_fact(estimate).rows
    return Facts(tuple(rows))


def assumed(plan: PlanResult) -> Table | None:
    """Every value that was used and not stated, a key with two reasons once; None where there is none."""
    whys: dict[tuple[str, str], str] = {}
    for each in plan.assumptions:
        named = each.key, value(each.value)
        whys[named] = f"{whys[named]}; {each.why}" if named in whys else each.why
    rows = tuple((key, item, why) for (key, item), why in whys.items())
    return Table("assumed, because the plan does not say", (), rows, flow="wrap") if rows else None


def assumed_by_reason(plan: PlanResult) -> Facts | None:
    """The assumed values grouped by their reasons, in as few lines as possible."""
    reasons: dict[str, list[str]] = {}
    for item in plan.assumptions:
        reasons.setdefault(item.why, []).append(f"{item.key}: {value(item.value)}")
    if not reasons:
        return None
    parts = [f"{', '.join(items)} ({why})" if why else ", ".join(items) for why, items in reasons.items()]
    return Facts((Fact("assumed", "; ".join(parts), "dim"),))


def _host_words(estimate: Estimate) -> str:
    """When the memory of a node is fullest."""
    moment = estimate.host_moment
    return f"{moment.name}: {moment.operation}" if moment is not None else ""
