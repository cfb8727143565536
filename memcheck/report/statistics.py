"""``--statistics``: how often each rule found something, and which plans are the fullest."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, one_line, percent, plural, width
from memcheck.finding import SEVERITIES, Finding
from memcheck.report.verdict import host_decides, pressure
from memcheck.result import PlanResult, Report

FULLEST = 5


def render(report: Report, screen: Screen) -> str:
    """Rules, the gravest and most frequent first; then the fullest plans."""
    groups = [rules(report, screen), fullest(report, screen)]
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def rules(report: Report, screen: Screen) -> list[str]:
    """One row per rule that found something: findings, plans with one, severity, code, name."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for number, plan in enumerate(report.plans):
        for finding in plan.findings:
            found.setdefault(key(finding), []).append(number)
    if not found:
        return [screen.paint("no findings", "good")]
    ranked = sorted(found.items(), key=lambda item: (-SEVERITIES.index(item[0][0]), -len(item[1]), item[0][1]))
    lines = [screen.paint("findings  plans  rule", "dim")]
    for (severity, code, name), plans in ranked:
        label = screen.paint(severity.ljust(7), severity)
        lines.append(f"{len(plans):>8}  {len(set(plans)):>5}  {label}  {code} {name}")
    return lines


def key(finding: Finding) -> tuple[str, str, str]:
    """What findings are counted by: a rule may be milder in some places."""
    return finding.severity, finding.code, finding.name


def fullest(report: Report, screen: Screen) -> list[str]:
    """The plans whose memory is fullest, of a GPU or of a node that lacks it, and how many could not be judged."""
    judged = [(plan, plan.estimate) for plan in report.plans if plan.estimate is not None]
    ranked = sorted(judged, key=lambda pair: -pressure(pair[0]))[:FULLEST]
    lines = [screen.paint("highest utilization", "dim")] if ranked else []
    rows = [row(plan, estimate) for plan, estimate in ranked]
    longest = max((width(text) for _, text, _ in rows), default=0)
    wide = all(width(share) + 2 + longest + 2 + width(path) <= screen.columns for share, _, path in rows)
    for (share, text, path), (plan, _) in zip(rows, ranked, strict=True):
        style = "error" if pressure(plan) > 1 else "warning" if plan.status != "passed" else "strong"
        pad = " " * (longest - width(text) + 2)
        lines.append(f"{screen.paint(share, style)}  {text}" + (pad + screen.paint(path, "dim") if wide else ""))
    without = len(report.plans) - len(judged)
    return [*lines, f"{plural(without, 'plan')} without an estimate"] if without else lines


def row(plan: PlanResult, estimate: Estimate) -> tuple[str, str, str]:
    """One plan: share; figures and name; its place, which is left out where the screen is too narrow for it."""
    need, has, whose = estimate.needed_bytes, estimate.capacity_bytes, ""
    if host_decides(plan):
        need, has, whose = estimate.host_bytes_per_node, plan.host_capacity_bytes or 0, " (host memory of a node)"
    figures = f"{gib(need).rjust(8)} of {gib(has).rjust(6)} GiB"
    share = pressure(plan) if whose else estimate.utilization
    return percent(share).rjust(8), f"{figures}  {one_line(plan.name)}{whose}", one_line(plan.path)
