"""``memcheck estimate``: where the memory of one plan goes, and when."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, Formula, RankEstimate
from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, percent, value, width, wrap
from memcheck.report.budget import budget, host_budget
from memcheck.report.details import host_line, interval, labelled, largest, name_and_place, peak, span
from memcheck.report.seen import formula_head
from memcheck.result import PlanResult


def breakdown(plan: PlanResult, estimate: Estimate, screen: Screen, *, formulas: bool) -> str:
    """Budget, peak, timeline, ranks, largest tensors, assumptions and, if asked for, the formulas."""
    groups = [
        heading(plan, estimate, screen),
        budget(plan, estimate, screen),
        host_budget(plan, screen),
        totals(plan, estimate, screen),
        timeline(estimate, screen),
        ranks(estimate, screen),
        largest(estimate.largest, screen),
        assumed(plan, screen),
        arithmetic(estimate.formulas, screen) if formulas else [],
    ]
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def heading(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """Name, place, and what runs where."""
    where = f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu
    trainable = estimate.trainable_parameters
    count = f"{estimate.parameters:,} parameters"
    if trainable and trainable != estimate.parameters:
        count += f", {trainable:,} trained"
    text = ", ".join(clean(part) for part in (plan.model, count, where, plan.framework) if part)
    return name_and_place(plan.name, plan.path, screen) + wrap(text, screen.columns)


def totals(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """The quantities one compares with torch and nvidia-smi."""
    text = f"allocated {gib(estimate.allocated_bytes)}, needed {gib(estimate.needed_bytes)} GiB, {interval(estimate)}"
    seen = (
        f"reserved {gib(estimate.reserved_bytes)}, nvidia-smi {gib(estimate.device_bytes)} GiB with the cache,"
        f" {span(estimate.interval_bytes)}"
    )
    lines = labelled("peak", peak(estimate), screen) + labelled("total", text, screen) + labelled("seen", seen, screen)
    if plan.settled_by:
        lines += labelled("uncertain", f"to settle it: {plan.settled_by}", screen)
    if plan.rests_on:
        rests = "; ".join(
            f"{each.key}: {value(each.value)} (with {value(each.other)}: {percent(each.utilization)})"
            for each in plan.rests_on
        )
        lines += labelled("assumes", rests, screen)
    if estimate.host_bytes_per_node and plan.host_capacity_bytes is None:
        lines += labelled("host", host_line(estimate), screen)
    return lines


def timeline(estimate: Estimate, screen: Screen) -> list[str]:
    """Live bytes of the worst rank at every instant of the step."""
    rank = next((r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank), None)
    if rank is None:
        return []
    suffix = f", pipeline rank {rank.pipeline_rank}" if len(estimate.ranks) > 1 else ""
    rows = [(i.name, i.allocated_bytes, i.operation) for i in rank.instants]
    return [screen.paint(f"allocated at each instant of a step{suffix} (GiB)", "dim"), *_bars(rows, screen)]


def ranks(estimate: Estimate, screen: Screen) -> list[str]:
    """The peak of every pipeline rank."""
    if len(estimate.ranks) < 2:
        return []
    rows = [(f"rank {r.pipeline_rank}", r.peak.allocated_bytes, _rank_note(r)) for r in estimate.ranks]
    return [screen.paint("allocated peak of each pipeline rank (GiB)", "dim"), *_bars(rows, screen)]


def _rank_note(rank: RankEstimate) -> str:
    return f"{rank.peak.name}, {rank.parameters:,} parameters"


def _bars(rows: list[tuple[str, int, str]], screen: Screen) -> list[str]:
    first = max(width(name) for name, _, _ in rows)
    figures = max(len(gib(count)) for _, count, _ in rows)
    notes = max((width(note) for _, _, note in rows), default=0)
    room = screen.columns - first - figures - 4
    cells = max(10, min(40, room - notes - 2))
    most = max(1, *(count for _, count, _ in rows))
    lines = []
    for name, count, note in rows:
        used = round(count / most * cells)
        bar = screen.paint(screen.glyph("full") * used, "bar") + " " * (cells - used)
        text = wrap(clean(note), max(10, room - cells - 2))
        pad = " " * (first + figures + cells + 6)
        lines.append(f"{name}{' ' * (first - width(name))}  {gib(count).rjust(figures)}  {bar}  {text[0]}".rstrip())
        lines += [pad + line for line in text[1:]]
    return lines


def assumed(plan: PlanResult, screen: Screen) -> list[str]:
    """One line per value that was used and not stated."""
    if not plan.assumptions:
        return []
    whys: dict[tuple[str, str], str] = {}
    for each in plan.assumptions:  # a key with two reasons is one line
        named = clean(each.key), clean(value(each.value))
        whys[named] = f"{whys[named]}; {clean(each.why)}" if named in whys else clean(each.why)
    rows = [(key, item, why) for (key, item), why in whys.items()]
    keys = max(width(row[0]) for row in rows)
    values = min(30, max(width(row[1]) for row in rows))
    lines = [screen.paint("assumed, because the plan does not say", "dim")]
    for key, item, why in rows:
        head = f"{key}{' ' * (keys - width(key))}  {item}{' ' * (values - width(item))}  "
        room = screen.columns - width(head)
        parts = wrap(why, room) if room >= 12 else [""]
        if room < 12:
            lines += [part for text in (f"{key}: {item}", why) for part in wrap(text, screen.columns)]
        else:
            lines += [f"{head}{parts[0]}".rstrip(), *(" " * width(head) + part for part in parts[1:])]
    return lines


def arithmetic(formulas: tuple[Formula, ...], screen: Screen) -> list[str]:
    """Every formula with its numbers, its result and where it comes from."""
    if not formulas:
        return []
    lines = [screen.paint("formulas", "dim")]
    for item in formulas:
        lines.append(f"{screen.paint(formula_head(item)[1], 'strong')}  {gib(item.bytes)} GiB ({item.bytes:,} bytes)")
        for text in (item.formula, f"= {item.numbers}", f"from {item.source}" if item.source else ""):
            if text:
                lines += [f"  {part}" for part in wrap(clean(text), screen.columns - 2)]
    return lines
