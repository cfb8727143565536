"""The comparison for a terminal: one block per plan that moved, one line when none did."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, percent, words, wrap
from memcheck.review.diff.keys import told
from memcheck.review.diff.types import FAILS_NOW, PASSES_NOW, RENAMED, Change, PlanDiff
from memcheck.review.diff.words import headline, host, hours, points, rest, signed_gib, size, verdict

STYLES = {FAILS_NOW: "error", PASSES_NOW: "good"}


def render(comparison: PlanDiff, screen: Screen) -> str:
    """Plans that moved, then a line that counts all; nothing at all if quiet and nothing moved."""
    if screen.quiet and not comparison.changes:
        return ""
    lines: list[str] = []
    for change in comparison.changes:
        lines += [*block(change, screen), ""]
    counts = ", ".join(part for part in (headline(comparison), rest(comparison)) if part)
    style = "error" if comparison.verdicts(FAILS_NOW) else "strong"
    for line in wrap(clean(f"{counts} ({comparison.before} -> {comparison.after})"), screen.columns):
        lines.append(screen.paint(line, style))
    return "\n".join(lines) + "\n"


def block(change: Change, screen: Screen) -> list[str]:
    """One plan: what happened to it, then its memory and the components that moved."""
    said = [clean(change.kind), verdict(change)]
    if change.kind == RENAMED and change.before is not None:
        said[0] = f"renamed from {change.before.path}"
    side = change.side
    head = f"{side.name}  {side.path}: {', '.join(part for part in said if part)}"
    lines = [screen.paint(line, STYLES.get(change.verdict, "strong")) for line in wrap(clean(head), screen.columns)]
    lines += [f"  {line}" for each in told(change.keys, "->") for line in wrap(each, screen.columns - 2)]
    lines += rows(change)
    codes = change.after.codes if change.after is not None and change.after.status != "passed" else ()
    lines += [f"  {line}" for line in wrap(clean(", ".join(codes)), screen.columns - 2) if line]
    remedy = f"first remedy: {change.remedy}" if change.remedy else ""
    lines += [f"  {line}" for line in wrap(clean(remedy), screen.columns - 2) if line]
    return lines


def rows(change: Change) -> list[str]:
    """Columns: what, before, after, change."""
    before, after = change.before, change.after
    if before is None or after is None or change.delta_bytes is None:
        parts = [size(each.needed_bytes) for each in (before, after) if each is not None]
        shares = [f"{percent(each.utilization)} of capacity" for each in (before, after) if each and each.needed_bytes]
        return ["  " + ", ".join([" -> ".join(parts), " -> ".join(shares)]).rstrip(", ")]
    if before.figures == after.figures:
        return [f"  {size(after.needed_bytes)}, {percent(after.utilization)} of capacity"]
    device = (gib(before.needed_bytes or 0), gib(after.needed_bytes or 0), f"{signed_gib(change.delta_bytes)} GiB")
    used = (percent(before.utilization), percent(after.utilization), points(change))
    table = [("device memory needed", *device), ("of capacity", *used)]
    if before.capacity_bytes != after.capacity_bytes:
        moved = after.capacity_bytes - before.capacity_bytes
        table.append(("capacity", gib(before.capacity_bytes), gib(after.capacity_bytes), f"{signed_gib(moved)} GiB"))
    table += [(f"  {words(name)}", gib(old), gib(new), signed_gib(new - old)) for name, old, new in change.components]
    if moved_host := host(change):
        table.insert(0 if not change.delta_bytes else len(table), ("host memory of a node", *moved_host))
    if run := hours(change):
        table.append(("GPU hours of the run", *run, ""))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    return [
        f"  {what.ljust(widths[0])}  {old.rjust(widths[1])} -> {new.rjust(widths[2])}  {moved}".rstrip()
        for what, old, new, moved in table
    ]
