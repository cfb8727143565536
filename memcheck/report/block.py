"""One plan in a few lines: name, bar, numbers."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.edge.text import between, clean, gib, one_line, percent, value, width, words, wrap
from memcheck.report.gauge import Gauge, drawn, gauge_of
from memcheck.result import PASSED, PlanResult

LABELS = {"passed": ("pass", "good"), "failed": ("fail", "error"), "error": ("fail", "error")}
TOP_COMPONENTS = 3
BAR = 40
LEAST_BAR = 12


def block(plan: PlanResult, estimate: Estimate, screen: Screen, *, with_host: bool = True) -> list[str]:
    """Verdict, name and place; the bar with its numbers; what holds the most.

    ``with_host``: nothing else has told of the memory of a node.
    """
    label, style = ("accepted", "dim") if plan.accepted else LABELS[plan.status]
    name = one_line(plan.name)
    path = one_line(plan.path)
    lines = [f"{screen.paint(label, style)}  {screen.paint(name, 'strong')}"]
    if path == name:
        pass  # a command line has no file
    elif len(label) + 2 + width(name) + 2 + width(path) <= screen.columns:
        lines[0] += f"  {screen.paint(path, 'dim')}"
    else:
        lines.append(f"      {screen.paint(path, 'dim')}")
    lines += bar(plan, estimate, screen)
    lines += [f"      {line}" for line in wrap(facts(plan, estimate, screen.columns - 6), screen.columns - 6)]
    lines += [f"      {line}" for line in (grounds(plan, screen.columns - 6) if plan.status == PASSED else [])]
    lines += [f"      {line}" for line in (host(plan, estimate, screen) if with_host else [])]
    if plan.accepted:
        from memcheck.report.verdict import accepted

        reason = "; ".join(accepted(plan))
        said = wrap(clean(f"accepted: {reason}"), screen.columns - 6)
        lines += [f"      {screen.paint(line, 'dim')}" for line in said]
    return lines


def grounds(plan: PlanResult, columns: int) -> list[str]:
    """The assumptions that move the figure, as many as fit on one line, and how many more there are."""
    found = plan.rests_on
    told = []
    for each in found:
        key = each.key.partition(".")[2]
        told.append(clean(f"{key}: {value(each.value)} ({percent(each.utilization)} with {value(each.other)})"))
    for count in range(len(told), 0, -1):
        left = len(told) - count + plan.untried
        line = f"assumes {', '.join(told[:count])}{f'; {left} more in memcheck estimate' if left else ''}"
        if width(line) <= columns or count == 1:
            return wrap(line, columns)
    return []


def bar(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """The bar of a GPU's memory with its numbers."""
    need = gib(estimate.needed_bytes).rjust(6)
    numbers = f"{need} of {gib(estimate.capacity_bytes)} GiB, {between(estimate.needed_interval_bytes)}"
    return with_numbers(gauge_of(plan, estimate), percent(estimate.utilization), numbers, screen)


def with_numbers(gauge: Gauge, share: str, numbers: str, screen: Screen) -> list[str]:
    """Lines of a bar and its numbers: on one line, or the numbers on a second line where there is no room."""
    used = share.rjust(6)
    cells = min(screen.columns - 64, BAR)  # the same for every plan, so that bars can be compared
    if cells >= LEAST_BAR and 6 + cells + 1 + len(used) + 2 + len(numbers) <= screen.columns:
        return [f"      {drawn(gauge, cells, screen)} {screen.paint(used, 'strong')}  {numbers}"]
    shown = drawn(gauge, screen.columns - 6 - len(used) - 1, screen)
    return [f"      {shown} {screen.paint(used, 'strong')}", f"      {numbers.strip()}"]


def host(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """What a node needs of the memory that the plan states for it, and when."""
    moment, capacity = estimate.host_moment, plan.host_capacity_bytes
    if moment is None or capacity is None:
        return []
    slack = capacity - moment.bytes
    text = (
        f"host memory of a node: {gib(moment.bytes)} of {gib(capacity)} GiB in {moment.name} ({moment.operation}), "
        f"{gib(abs(slack))} {'missing' if slack < 0 else 'left'}"
    )
    style = "error" if slack < 0 else ""
    return [screen.paint(line, style) for line in wrap(clean(text), screen.columns - 6)]


def facts(plan: PlanResult, estimate: Estimate, columns: int) -> str:
    """One line on a plan: GPUs and framework, the instant of the peak, and the largest components that fit on it."""
    where = f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu
    rank = f" on pipeline rank {estimate.pipeline_rank}" if len(estimate.ranks) > 1 else ""
    text = "; ".join(
        part for part in (clean(where), clean(plan.framework), f"peak in {estimate.instant}{rank}") if part
    )
    separator = ": "
    for name, count in sorted(estimate.needed_parts_bytes.items(), key=lambda item: -item[1])[:TOP_COMPONENTS]:
        part = f"{separator}{words(name)} {gib(count)}"
        if not count or width(text + part) > columns:
            break
        text += part
        separator = ", "
    return text
