"""The comparison as GitHub-flavoured Markdown, for job summaries and for one comment: empty when nothing moved."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, percent, plural, words
from memcheck.report.markdown import code, escape
from memcheck.review.diff.keys import told
from memcheck.review.diff.types import ACCEPTED, RENAMED, WARNED, Change, PlanDiff, Side
from memcheck.review.diff.words import headline, host, hours, points, rest, signed_gib, size, verdict

LIMIT = 64_000
"""The most characters of the report. GitHub refuses comments of more than 65,536, and a poster may add a line."""
MOST_KEYS = 3
"""Changed keys in the row of a plan; its details have more."""
HEAD = ["| | Plan | Before | After | Change | Of capacity |", "|---|---|---:|---:|---:|---|"]
ICONS = {"passed": "✅", "failed": "❌", "error": "❌", ACCEPTED: "⚪", WARNED: "⚠️"}
"""The marks of the job summary (:mod:`memcheck.report.markdown`)."""


def render(comparison: PlanDiff, screen: Screen | None = None, limit: int = LIMIT) -> str:
    """The table, then each plan's components folded. What is too long loses details first, then the table's middle."""
    if not any(change.moved for change in comparison.changes):
        return ""
    failing = any(change.after is not None and change.after.status != "passed" for change in comparison.changes)
    start = [f"### {'❌' if failing else '✅'} memcheck: {headline(comparison)}", "", *HEAD]
    also = f" {rest(comparison)}." if rest(comparison) else ""
    end = [
        "",
        f"<sub>{escape(comparison.before, commits=True)} → {escape(comparison.after, commits=True)}.{also}</sub>",
        "",
    ]
    room = limit - len("\n".join(start + end)) - 200  # for the two lines that say what was left out
    rows = shortened([row(change) for change in comparison.changes], room)
    room -= sum(len(line) + 1 for line in rows)
    folded: list[str] = []
    left_out = 0
    for change in comparison.changes:
        text = "\n".join(details(change))
        if text and len(text) + 1 > room:
            left_out += 1
        elif text:
            room -= len(text) + 1
            folded.append(text)
    if left_out:
        folded += ["", f"The components of {plural(left_out, 'plan')} are left out: the text would be too long."]
    return "\n".join([*start, *rows, *folded, *end])


def shortened(rows: list[str], room: int) -> list[str]:
    """All rows, or the first and the last that fit: plans are ranked, so that the middle moved least."""
    if sum(len(line) + 1 for line in rows) <= room:
        return rows
    first: list[str] = []
    last: list[str] = []
    start, stop = 0, len(rows)
    while start < stop:
        # Three rows from the top for each from the bottom: growth is what readers look for.
        top = len(first) <= 3 * len(last)
        line = rows[start] if top else rows[stop - 1]
        if len(line) + 1 > room:
            break
        room -= len(line) + 1
        if top:
            first.append(line)
            start += 1
        else:
            last.insert(0, line)
            stop -= 1
    return [*first, f"| | … {stop - start:,} more … | | | | |", *last]


def row(change: Change) -> str:
    """One plan of the table."""
    before, after = change.before, change.after
    icon = "" if after is None else _icon(after)
    if before is not None and after is not None and _icon(before) != icon:
        icon = f"{_icon(before)} → {icon}"
    name = f"**{escape(change.side.name)}**<br>{code(change.side.path)}"
    if change.kind == RENAMED and before is not None:
        name += f"<br>was {code(before.path)}"
    name += "".join(f"<br>{code(each)}" for each in told(change.keys, "→", MOST_KEYS))
    said = ", ".join(part for part in (change.kind, verdict(change)) if part and part != "changed")
    moved = said if not change.delta_bytes else "**" + signed_gib(change.delta_bytes) + " GiB**"
    if change.delta_bytes and said:
        moved += f"<br>{said}"
    if change.delta_host_bytes:
        moved += f"{'<br>' if moved else ''}host {signed_gib(change.delta_host_bytes)} GiB a node"
    old, new = (size(each.needed_bytes) if each else "" for each in (before, after))
    return f"| {icon} | {name} | {old} | {new} | {moved} | {used(before, after, change)} |"


def _icon(side: Side) -> str:
    return ICONS.get(side.mark or side.status, "❌")


def used(before: Side | None, after: Side | None, change: Change) -> str:
    """``62.5% → 77.6%<br>+15.1 points``."""
    shares = [
        percent(each.utilization) for each in (before, after) if each is not None and each.needed_bytes is not None
    ]
    return " → ".join(shares if change.moved else shares[:1]) + (
        f"<br>{points(change)}" if change.moved and change.delta_bytes is not None else ""
    )


def details(change: Change) -> list[str]:
    """The components that moved and the errors, folded; nothing for plans without either."""
    before, after = change.before, change.after
    lines = [f"- {code(each)}" for each in told(change.keys, "→")]
    lines += [""] if lines else []
    if before is not None and after is not None and change.delta_bytes is not None and change.components:
        lines += ["| Component | Before, GiB | After, GiB | Change |", "|---|---:|---:|---:|"]
        lines += [
            f"| {words(name)} | {gib(old)} | {gib(new)} | {signed_gib(new - old)} |"
            for name, old, new in change.components
        ]
        lines.append("")
    if moved := host(change):
        lines += [f"Host memory of a node, GiB: {moved[0]} → {moved[1]} ({moved[2]}).", ""]
    if run := hours(change):
        lines += [f"GPU hours of the run: {run[0]} → {run[1]}.", ""]
    if after is not None and after.status != "passed" and after.codes:
        lines += ["Errors: " + ", ".join(code(each) for each in after.codes), ""]
    if change.remedy:
        lines += [f"First remedy: {code(change.remedy)}", ""]
    if not lines:
        return []
    return ["", f"<details><summary><b>{escape(change.side.name)}</b></summary>", "", *lines, "</details>"]
