"""What a terminal shows beyond a plan that passes: findings, the breakdown of an estimate, statistics."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen, gib, one_line, percent, plural, width
from memcheck.plan.finding import SEVERITIES, Finding, Location
from memcheck.report import text, text_blocks
from memcheck.report.story import Gauge, PlanHead, Prose
from memcheck.report.story.blocks import Block, Excerpt, Fact, Facts, Table
from memcheck.report.story.findings import TONES, excerpt, is_long, is_whole_file
from memcheck.report.story.findings import chart as engine_chart
from memcheck.report.story.findings import line as engine_line
from memcheck.report.story.findings import table as engine_table
from memcheck.report.story.memory import (
    arithmetic,
    assumed,
    assumed_by_reason,
    host_ledger,
    interval,
    largest,
    ledger,
    peak,
    rank_peaks,
    timeline,
    totals,
)
from memcheck.report.story.remedies import offered
from memcheck.report.story.summary import gauge, plan_summary
from memcheck.report.verdict import HOST, host_decides, pressure, short_of_host
from memcheck.rules.result import DEFECT, PlanResult, Report

MOST_LINES = 18
"""Lines of a finding that are aimed at: with what follows the last plan, a plan that fails takes 22. A note takes one
of them."""
AIRY, MOST_OF_REFUSED = 9, 21
"""Lines that snippets with space around them may take, and lines of all that is shown of a plan without an estimate."""
LEAST_SHARED = 30
"""Characters at the start of two messages that are shown once, if both have them."""
INDENT = 6
Group = list[Finding]


def findings_of(plan: PlanResult, screen: Screen) -> str:
    """All findings of one plan; its verdict, where no finding about the memory of a GPU has shown that."""
    if plan.estimate is None and not screen.verbose:
        return "\n".join(refused(plan, screen))
    parts: list[list[str]] = []
    shown = False
    for finding in plan.findings:
        first = not shown and finding.about_memory and finding.code != HOST and plan.estimate is not None
        shown |= first
        parts.append(diagnostic(plan, finding, screen, first=first))
    if plan.estimate is not None and not shown:
        told = any(finding.code == HOST for finding in plan.findings)
        parts.append(text.block(plan_summary(plan, plan.estimate, with_host=not told), screen))
    return "\n\n".join("\n".join(lines) for lines in parts)


def diagnostic(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool) -> list[str]:
    """One finding: headline, source, memory, remedies, help. ``first``: none before it showed the memory of the GPU."""
    item = excerpt(plan, finding)
    head = text_blocks.headline(item, screen)
    if screen.verbose:
        return head + everything(plan, finding, item, screen, first=first)
    if item.brief:
        return head
    notes = any(map(is_long, plan.findings[:MOST_LINES]))  # of more findings than lines, no screen shows all
    return head + one_screen(plan, finding, item, screen, first=first, lines=MOST_LINES - notes - len(head))


def one_screen(
    plan: PlanResult, finding: Finding, item: Excerpt, screen: Screen, *, first: bool, lines: int
) -> list[str]:
    """The text below a headline, in about ``lines`` lines: remedies after the first are dropped to save room.

    ``first``: no finding before it showed the bar of the GPU.
    """
    estimate = plan.estimate
    found = text_blocks.source(item, screen, compact=finding.about_memory)
    if estimate is not None and first:
        found += text.gauge(gauge(plan, estimate), screen)
    elif estimate is not None and finding.code == HOST and (node := host_gauge(plan)):
        found += text.gauge(node, screen)
    told = item.help
    if finding.remedies and estimate is not None:
        found += text_blocks.remedies(offered(plan, finding.remedies, "short"), screen, lines - len(found) - 1)
        told = help_of_remedies(plan, finding)
    return found + text_blocks.help_lines(told, screen)


def host_gauge(plan: PlanResult) -> Gauge | None:
    """A node's memory at the moment that lacks the most; None where no moment lacks any."""
    moments, capacity = short_of_host(plan), plan.host_capacity_bytes
    if not moments or not capacity:
        return None
    need = moments[0].bytes
    return Gauge(
        needed_bytes=need,
        seen_bytes=need,
        capacity_bytes=capacity,
        limit_bytes=capacity,
        tone="bad",
        share=percent(need / capacity),
        numbers=f"{gib(need).rjust(6)} of {gib(capacity)} GiB of a node's memory",
    )


def help_of_remedies(plan: PlanResult, finding: Finding) -> str:
    """What writes a remedy into the file, where there are more of them, and the rule's own way out.

    The first line of the finding's help is the gain of the first remedy, which the table shows.
    """
    _, *own = finding.help.split("\n")
    search = "`memcheck suggest` finds more"
    chosen = plan.written_by_unsafe_fixes(finding)
    if chosen is not None:
        search = f"`--fix --unsafe-fixes` writes remedy {finding.remedies.index(chosen) + 1}; {search}"
    return "\n".join((search, *own))


def everything(plan: PlanResult, finding: Finding, item: Excerpt, screen: Screen, *, first: bool) -> list[str]:
    """All that is known about a finding. ``first``: no finding before it showed the ledger of the GPU."""
    found = text_blocks.source(item, screen)
    estimate = plan.estimate
    remedies = offered(plan, finding.remedies, "long") if finding.remedies and estimate is not None else None
    groups: list[tuple[Block | None, ...]] = [
        (remedies,),
        (Facts((Fact("help", item.help, "note"),)) if item.help else None,),
    ]
    if first and estimate is not None:
        held = Facts((Fact("peak", peak(estimate)), Fact("interval", interval(estimate.needed_interval_bytes))))
        budget: list[tuple[Block | None, ...]] = [
            (ledger(plan, estimate),),
            (held,),
            (largest(estimate.largest),),
            (assumed_by_reason(plan),),
        ]
        groups = [*budget, *groups]
    elif finding.code == HOST:
        groups = [(host_ledger(plan),), (assumed_by_reason(plan),), *groups]
    for group in groups:
        lines = text.lines(group, screen)
        found += ["", *lines] if lines else []
    return found


def refused(plan: PlanResult, screen: Screen) -> list[str]:
    """A plan without an estimate: every finding with its source lines, or a list where they fill more than a screen.

    Findings at one place with one help share both.
    """
    groups = _groups(plan)
    for tight in (False, True):
        parts = [_whole(plan, group, screen, tight=tight) for group in groups]
        lines = "\n\n".join("\n".join(part) for part in parts).split("\n") if parts else []
        if len(lines) <= AIRY:
            return lines
    errors = [group for group in groups if not is_long(group[0])]
    if len(errors) < 2:
        return lines
    return _listed(plan, groups, screen)


def _groups(plan: PlanResult) -> list[Group]:
    """Findings with the same place and the same help together, at the place of the first of them."""
    found: dict[object, Group] = {}
    for finding in plan.findings:
        places = tuple((label, where) for label, where in finding.related)
        shared = (finding.code, finding.severity, finding.help, finding.location, places)
        found.setdefault(shared if finding.help else id(finding), []).append(finding)
    return list(found.values())


def _heads(items: list[Excerpt], screen: Screen) -> list[str]:
    """The headline of each; the words that all messages start with are in the first one alone."""
    lines = text_blocks.headline(items[0], screen)
    shared = _shared_start([item.message for item in items])
    for item in items[1:]:
        short = item._replace(message=f"... {item.message[shared:]}") if shared >= LEAST_SHARED else item
        lines += text_blocks.headline(short, screen)
    return lines


def _shared_start(messages: list[str]) -> int:
    """How many characters of whole words all messages start with."""
    shortest, longest = min(messages), max(messages)  # in the order of letters: what these two share, all share
    same = next((at for at, pair in enumerate(zip(shortest, longest, strict=False)) if pair[0] != pair[1]), 0)
    return shortest.rfind(" ", 0, same) + 1


def _whole(plan: PlanResult, group: Group, screen: Screen, *, tight: bool) -> list[str]:
    """One group with its source lines and its help."""
    items = [excerpt(plan, finding) for finding in group]
    lines, first = _heads(items, screen), items[0]
    if first.brief:
        return lines
    return [*lines, *text_blocks.source(first, screen, tight=tight), *text_blocks.help_lines(first.help, screen)]


def _listed(plan: PlanResult, groups: list[Group], screen: Screen) -> list[str]:
    """The groups without source lines, as many as one screen holds, and how many findings it does not hold."""
    parts = []
    for group in groups:
        items = [excerpt(plan, finding) for finding in group]
        lines = _heads(items, screen)
        if not items[0].brief:
            where = _place(group[0])
            place = f"{one_line(where.path)}:{where.span.line}:{where.span.column}"
            lines.append(f"  {screen.paint('-->', 'gutter')} {place}")
            lines += text_blocks.help_lines(items[0].help, screen, INDENT)
        parts.append(lines)
    shown = len(parts)
    if sum(map(len, parts)) > MOST_OF_REFUSED:
        while shown > 1 and sum(map(len, parts[:shown])) >= MOST_OF_REFUSED:
            shown -= 1
    left = sum(map(len, groups[shown:]))
    lines = [line for part in parts[:shown] for line in part]
    return [*lines, screen.paint(f"and {plural(left, 'more finding')}: -v shows all", "strong")] if left else lines


def _place(finding: Finding) -> Location:
    """Where to look: the first other place, where the finding is about a file as a whole."""
    if is_whole_file(finding.location) and finding.related:
        return finding.related[0][1]
    return finding.location


def further(findings: Iterable[Finding], *, verbose: bool) -> Facts:
    """How to read about every rule that was met, and how to see all of what is known."""
    found = [finding for finding in findings if finding.code != DEFECT]
    if not found:
        return Facts(())
    commands = f"memcheck explain {' '.join(sorted({finding.code for finding in found}))}"
    if not verbose and any(finding.about_memory or is_long(finding) for finding in found):
        commands += "; -v shows everything"
    return Facts((Fact("more", commands, "dim"),))


def breakdown(plan: PlanResult, estimate: Estimate, screen: Screen, *, formulas: bool) -> str:
    """Ledger, peak, timeline, ranks, largest tensors, assumptions and, if asked for, the formulas."""
    groups: list[tuple[Block | None, ...]] = [
        (PlanHead(plan.name, plan.path), Prose(job(plan, estimate))),
        *_engine(estimate),
        (ledger(plan, estimate),),
        (host_ledger(plan),),
        (totals(plan, estimate),),
        (timeline(estimate),),
        (rank_peaks(estimate),),
        (largest(estimate.largest),),
        (assumed(plan),),
        (arithmetic(estimate) if formulas else None,),
    ]
    return text.document(groups, screen) + "\n"


def _engine(estimate: Estimate) -> list[tuple[Block | None, ...]]:
    """The answer of a serving engine, a bar for each rank, and the terms; nothing for plans without an engine."""
    if estimate.engine is None:
        return []
    return [(Prose(engine_line(estimate.engine)),), (engine_chart(estimate),), (engine_table(estimate.engine),)]


def job(plan: PlanResult, estimate: Estimate) -> str:
    """The model with its parameters, the GPUs and the framework."""
    where = f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu
    trainable = estimate.trainable_parameters
    count = f"{estimate.parameters:,} parameters"
    if trainable and trainable != estimate.parameters:
        count += f", {trainable:,} trained"
    return ", ".join(part for part in (plan.model, count, where, plan.framework) if part)


FULLEST = 5


def statistics(report: Report, screen: Screen) -> str:
    """Rules, the gravest and most frequent first; then the fullest plans."""
    groups = [text.block(rule_counts(report), screen), fullest(report, screen)]
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def rule_counts(report: Report) -> Table | Prose:
    """One row per rule that found something: findings, plans with one, severity, code, name."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for number, plan in enumerate(report.plans):
        for finding in plan.findings:
            found.setdefault(rule_key(finding), []).append(number)
    if not found:
        return Prose("no findings", "good")
    ranked = sorted(found.items(), key=lambda item: (-SEVERITIES.index(item[0][0]), -len(item[1]), item[0][1]))
    rows = tuple(
        (str(len(plans)), str(len(set(plans))), f"{severity.ljust(7)}  {code} {name}")
        for (severity, code, name), plans in ranked
    )
    tones = tuple(TONES[severity] for (severity, _, _), _ in ranked)
    return Table("", ("findings", "plans", "rule"), rows, right=(0, 1), tones=tones)


def rule_key(finding: Finding) -> tuple[str, str, str]:
    """What findings are counted by: a rule may be milder in some places."""
    return finding.severity, finding.code, finding.name


def fullest(report: Report, screen: Screen) -> list[str]:
    """The plans whose memory is fullest, of a GPU or of a node that lacks it, and how many have no estimate."""
    estimated = [(plan, plan.estimate) for plan in report.plans if plan.estimate is not None]
    ranked = sorted(estimated, key=lambda pair: -pressure(pair[0]))[:FULLEST]
    lines = [screen.paint("highest utilization", "dim")] if ranked else []
    rows = [fullest_row(plan, estimate) for plan, estimate in ranked]
    longest = max((width(told) for _, told, _ in rows), default=0)
    wide = all(width(share) + 2 + longest + 2 + width(path) <= screen.columns for share, _, path in rows)
    for (share, told, path), (plan, _) in zip(rows, ranked, strict=True):
        style = "error" if pressure(plan) > 1 else "warning" if plan.status != "passed" else "strong"
        pad = " " * (longest - width(told) + 2)
        lines.append(f"{screen.paint(share, style)}  {told}" + (pad + screen.paint(path, "dim") if wide else ""))
    without = len(report.plans) - len(estimated)
    return [*lines, f"{plural(without, 'plan')} without an estimate"] if without else lines


def fullest_row(plan: PlanResult, estimate: Estimate) -> tuple[str, str, str]:
    """One plan: share; figures and name; its place, which is left out where the screen is too narrow for it."""
    need, has, whose = estimate.needed_bytes, estimate.capacity_bytes, ""
    if host_decides(plan):
        need, has, whose = estimate.host_bytes_per_node, plan.host_capacity_bytes or 0, " (host memory of a node)"
    figures = f"{gib(need).rjust(8)} of {gib(has).rjust(6)} GiB"
    share = pressure(plan) if whose else estimate.utilization
    return percent(share).rjust(8), f"{figures}  {one_line(plan.name)}{whose}", one_line(plan.path)
