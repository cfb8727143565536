"""One bar of a plan's GPU memory, and its style: all that a plan that passes shows."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.memory.fit import RUNS, UNCERTAIN, gpu_fit
from memcheck.record import Record
from memcheck.result import PlanResult


def tone(plan: PlanResult, estimate: Estimate) -> str:
    """The style of a plan's bar: what is said about the memory of its GPUs, not its length alone."""
    fit = gpu_fit(estimate, plan.fail_above)
    if fit not in RUNS:
        return "bad-bar"
    return "warning-bar" if fit == UNCERTAIN or plan.count("warning") else "good-bar"


class Gauge(Record):
    """What a bar is drawn of, in bytes."""

    need: int
    seen: int
    """The need and the cache on top of it."""
    capacity: int
    limit: int
    """Where the policy says stop."""
    style: str


def gauge_of(plan: PlanResult, estimate: Estimate) -> Gauge:
    """The memory of a plan's GPUs."""
    capacity = estimate.capacity_bytes
    limit = int(capacity * min(plan.fail_above, 1.0))
    return Gauge(
        need=estimate.needed_bytes,
        seen=estimate.device_bytes,
        capacity=capacity,
        limit=limit,
        style=tone(plan, estimate),
    )


def drawn(gauge: Gauge, cells: int, screen: Screen) -> str:
    """One horizontal bar: the needed memory, then the cache, then the free memory, with a mark at the limit."""
    full = max(gauge.seen, gauge.need, gauge.capacity, 1)
    used = min(cells, max(1, round(gauge.need / full * cells)))
    seen = max(used, min(cells, round(gauge.seen / full * cells)))
    at = min(cells - 1, round(gauge.limit / full * cells))
    chars = [screen.glyph("full")] * used + [screen.glyph("tail")] * (seen - used)
    chars += [screen.glyph("track")] * (cells - seen)
    chars[at] = screen.glyph("limit")
    parts = [(0, min(at, used), gauge.style), (min(at, used), at + 1, "dim")]
    parts += [(at + 1, max(used, at + 1), gauge.style), (max(used, at + 1), cells, "dim")]
    return "".join(screen.paint("".join(chars[first:last]), style) for first, last, style in parts)
