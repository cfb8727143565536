"""GitHub-flavoured Markdown: a verdict table, then each failed plan folded. Made for job summaries and comments."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from memcheck.edge.screen import Screen, clean, gib, percent, plural, value
from memcheck.plan.finding import Finding
from memcheck.report.forge import broken
from memcheck.report.story.blocks import Comparison, Ledger, LedgerRow, Remedies
from memcheck.report.story.findings import line as engine_line
from memcheck.report.story.memory import cache_note, host_ledger, interval, ledger, peak
from memcheck.report.story.remedies import change_lines, offered, price
from memcheck.report.story.summary import summary as summary_text
from memcheck.report.verdict import accepted, pressure, short_of_host, verdict
from memcheck.rules.result import PASSED, PlanResult, Report

BYTE_LIMIT = 750_000
"""GitHub refuses a step summary of more than 1 MiB. The comparison with the base, of at most 64,000 characters of four
bytes, goes to the same summary."""
ROOM = 1000
"""Bytes for the lines that say what is left out."""
MOST_ROWS, MOST_NAME = 1000, 200
"""Rows of the table, and characters of a plan's name and path in it."""
ICONS = {"passed": "✅", "failed": "❌", "error": "❌"}


def render(report: Report, screen: Screen | None = None) -> str:
    """The whole report, as :func:`summary` writes it; the screen plays no part."""
    return summary(report)


def summary(report: Report) -> str:
    """The whole report; plans that would not fit GitHub's limit are left out, each as a whole, and counted."""
    text = Bounded(BYTE_LIMIT - ROOM)
    text.add(f"### {'❌' if report.failed or report.unreadable else '✅'} memcheck: {summary_text(report)}")
    text.add("")
    if report.plans:
        table(report, text)
    unread = [f"- could not read {code(_short(item.path))}: {escape(item.message)}" for item in report.unreadable]
    whole, text.limit = text.limit, text.limit * 3 // 4
    not_named = sum(not text.add(line) for line in unread)
    text.limit = whole
    left_out = sum(
        not text.add("\n" + "\n".join(details(plan, report.page_link(plan)))) for plan in report.plans if plan.findings
    )
    text.limit = BYTE_LIMIT
    if not_named:
        text.add(f"- and {plural(not_named, 'file')} more could not be read")
    if left_out:
        text.add(f"\n{plural(left_out, 'plan')} not shown in detail: the summary would be too long.")
    return "\n".join(text.parts).rstrip("\n") + "\n"


class Bounded:
    """Lines, as long as they fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The most bytes of UTF-8 that the report may have."""
        self.parts: list[str] = []
        self._size = 0

    def add(self, text: str) -> bool:
        """Add a line, or several, unless they do not fit; whether they did."""
        size = len(text.encode("utf-8", "replace")) + 1
        if self._size + size > self.limit:
            return False
        self._size += size
        self.parts.append(text)
        return True


def table(report: Report, text: Bounded) -> None:
    """One row per plan, those that fail first, then the fullest; a long list is cut so that details keep room."""
    ranked = sorted(report.plans, key=lambda plan: (plan.status == PASSED, -pressure(plan)))
    text.add("| | Plan | Verdict | GPU memory | Capacity | Used | Peak |\n|---|---|---|---:|---:|---:|---|")
    whole, text.limit = text.limit, text.limit // 2
    shown = 0
    for plan in ranked[:MOST_ROWS]:
        if not text.add(row(plan)):
            break
        shown += 1
    text.limit = whole
    if len(ranked) > shown:
        text.add(f"| | and {len(ranked) - shown:,} more | | | | | |")
    text.add("")


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"


def row(plan: PlanResult) -> str:
    """One plan of the table."""
    icon = "⚪" if plan.accepted else "⚠️" if plan.status == "passed" and plan.count("warning") else ICONS[plan.status]
    name = f"{icon} | **{escape(_short(plan.name))}**<br>{code(_short(plan.path))}"
    word = verdict(plan).word
    if plan.accepted:
        word += f"<br>{escape('; '.join(accepted(plan)))}"
    if plan.estimate is None:
        return f"| {name} | {word}: {plural(plan.count('error'), 'error')} | | | | |"
    e = plan.estimate
    for moment in short_of_host(plan)[:1]:
        word += f"<br>{gib(moment.bytes)} of {gib(plan.host_capacity_bytes or 0)} GiB a node, in {moment.name}"
    gpu = escape(f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu)
    numbers = f"{gib(e.needed_bytes)} GiB | {gib(e.capacity_bytes)} GiB<br>{gpu} | {percent(e.utilization)}"
    if e.engine is not None:
        word += f"<br>{escape(engine_line(e.engine))}"
    return f"| {name} | {word} | {numbers} | {escape(peak(e))} |"


def details(plan: PlanResult, page_link: str = "") -> list[str]:
    """Findings, budget and assumptions of one plan, folded; ``page_link`` opens the plan in the page."""
    counts = ", ".join(plural(n, kind) for kind in ("error", "warning") if (n := plan.count(kind)))
    lines = ["", f"<details><summary><b>{escape(_short(plan.name))}</b>: {counts or 'notes'}</summary>", ""]
    for finding in plan.findings:
        lines += diagnostic(plan, finding)
    if plan.estimate is not None:
        for moment in short_of_host(plan):
            held = host_ledger(plan, moment)
            if held is not None:
                lines += [*ledger_table(held, f"A node in {moment.name}"), "", f"In {escape(held.note)}.", ""]
        estimate = plan.estimate
        told = f"Peak: {escape(peak(estimate))}. Interval: {interval(estimate.needed_interval_bytes)}."
        if estimate.engine is not None:
            lines += [f"{escape(engine_line(estimate.engine))}.", ""]
        lines += ledger_table(ledger(plan, estimate), "At the peak")
        lines += ["", f"{told} {cache_note(estimate)}".rstrip(), ""]
    if plan.assumptions:
        text = ", ".join(
            f"{code(f'{item.key}: {value(item.value)}')} ({escape(item.why)})" for item in plan.assumptions
        )
        lines += [f"Assumed: {text}", ""]
    if page_link:
        host = page_link.partition("//")[2].partition("/")[0].partition("#")[0]  # a pull request may have named it
        lines += [f"[Open this plan in the page at {escape(host)}](<{page_link}>)", ""]
    return [*lines, "</details>", ""]


def diagnostic(plan: PlanResult, finding: Finding) -> list[str]:
    """One finding with its remedies."""
    where = finding.location
    place = code(f"{where.path}:{where.span.line}:{where.span.column}")
    lines = [f"**{finding.severity} {finding.code}** {finding.name} at {place}", "", escape(finding.message), ""]
    if finding.remedies and plan.estimate is not None:
        lines += [*remedies(offered(plan, finding.remedies, "long")), ""]
    if finding.help:
        lines += [f"Help: {escape(finding.help)}", ""]
    return lines


def remedies(item: Remedies) -> list[str]:
    """A table of changes, with a row for each group before those of the group."""
    lines = ["| Remedy | Memory | Step time |", "|---|---:|---|"]
    for asks, _, steps in item.groups():
        lines.append(f"| **{asks}** | | |")
        for step in steps:
            keys = "<br>".join([*map(code, change_lines(step)), *([step.paid] if step.paid else [])])
            lines.append(f"| {keys} | {step.effect.replace('->', '→')} | {price(step)} |")
    return lines


def ledger_table(item: Ledger, head: str) -> list[str]:
    """A ledger as a table: the need in bold, the cache in italics. ``head``: the head of the first column."""

    def row(amount: LedgerRow, mark: str = "") -> str:
        return f"| {mark}{escape(amount.label)}{mark} | {gib(amount.bytes)} | {item.share(amount)} |"

    marks = {item.needed: "**", item.cache: "*"}
    rows = [*map(row, item.parts), *(row(amount, marks.get(amount, "")) for amount in item.foot)]
    return [f"| {head} | GiB | {item.share_head} |", "|---|---:|---:|", *rows]


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int]) -> list[str]:
    """A table whose cells are Markdown already. ``right``: the columns that are aligned to the right."""
    rule = "|".join("---:" if index in right else "---" for index in range(len(heads)))
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return [lines[0].replace("|  |", "| |"), f"|{rule}|", *lines[1:]]


COMPARED = {"good": "✅", "warn": "⚠️"}
"""The signs of a comparison by tone; any other tone does not fit."""


def comparison(item: Comparison, group_head: str) -> list[str]:
    """A comparison as a table with the group of each subject in the first column, and its notes below."""
    rows = []
    for each in item.subjects:
        label = f"{each.label} {item.own_words}" if each.own else each.label
        first, *figures = each.figures
        verdict = f"{COMPARED.get(each.tone, '❌')} {escape(first)}"
        rows.append((escape(each.name), escape(label), verdict, *figures))
    right = range(3, len(item.heads) + 1)
    told = " ".join(text for note in item.notes if not note.own and (text := note.about(item.heads, ())))
    return [*table_lines((group_head, *item.heads), rows, right), "", f"<sub>{escape(told)}</sub>"]


_FIRST = re.compile(r"^([-+=]|:(?=:)|\d+(?=[.)]))")
"""What would start a list, a heading, a line or a runner's command at the beginning of a paragraph."""
SPECIAL = {ord(char): f"&#{ord(char)};" for char in "&<>\\`*_[]|~#$!"}
"""Characters of Markdown and HTML, and the entity that replaces each. Backslashes do not escape inside HTML."""


def escape(text: str, *, commits: bool = False) -> str:
    """User text as plain text in Markdown, tables and HTML alike: no markup, no mentions, one line.

    ``commits``: what looks like a commit may become a link to it, as in the name of a state.
    """
    shown = _inline(text, commits=commits)
    return _FIRST.sub(lambda found: "".join(f"&#{ord(char)};" for char in found[0]), shown)


def code(text: str) -> str:
    """User text as inline code. An ``@name`` in it notifies no user."""
    return f"<code>{_inline(text)}</code>"


def _inline(text: str, *, commits: bool = False) -> str:
    """One line without markup, and with a character of no width wherever a link would begin."""
    return broken(" ".join(clean(text).split()), commits=commits).translate(SPECIAL)
