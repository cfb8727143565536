"""One bar of a plan's GPU memory, and its style: all that a plan that passes shows."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.memory.fit import RUNS, UNCERTAIN, gpu_fit
from memcheck.result import PlanResult


def tone(plan: PlanResult, estimate: Estimate) -> str:
    """The style of a plan's bar: what is said about the memory of its GPUs, not its length alone."""
    fit = gpu_fit(estimate, plan.fail_above)
    if fit not in RUNS:
        return "bad-bar"
    return "warning-bar" if fit == UNCERTAIN or plan.count("warning") else "good-bar"


def gauge(plan: PlanResult, estimate: Estimate, cells: int, screen: Screen) -> str:
    """One horizontal bar: what is needed, the cache behind it, what is free, and a mark where the policy says stop."""
    full = max(estimate.device_bytes, estimate.capacity_bytes, 1)
    used = min(cells, max(1, round(estimate.needed_bytes / full * cells)))
    seen = max(used, min(cells, round(estimate.device_bytes / full * cells)))
    limit = min(estimate.capacity_bytes, full) * plan.fail_above / full
    at = min(cells - 1, round(limit * cells))
    chars = [screen.glyph("full")] * used + [screen.glyph("tail")] * (seen - used)
    chars += [screen.glyph("track")] * (cells - seen)
    style = tone(plan, estimate)
    if at >= used:
        chars[at] = screen.glyph("limit")
    filled = screen.paint("".join(chars[:used]), style)
    return filled + screen.paint("".join(chars[used:]), "dim")
