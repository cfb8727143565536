"""The difference for people and for programs: one document, and the formats that draw it or list its figures."""

from __future__ import annotations

from memcheck.cli.review.diff.compare import (
    ACCEPTED,
    FAILS_NOW,
    PASSES_NOW,
    RENAMED,
    UNCHANGED,
    WARNED,
    Change,
    Changed,
    PlanDiff,
    Side,
)
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, clean, gib, percent, plural, value, words
from memcheck.report import text
from memcheck.report.markdown import code, escape, table_lines
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Block, Item, Table

KINDS = ("added", "removed", "renamed", "changed")
VERDICTS = {FAILS_NOW: "fails now", PASSES_NOW: "passes now"}
TONES = {FAILS_NOW: "bad", PASSES_NOW: "good"}
MOST = 8
"""Changed keys of a plan that are listed."""
LONGEST = 60
"""The most characters of one value that are shown."""
LIMIT = 64_000
"""The most characters of the Markdown report. GitHub refuses comments of more than 65,536, and a poster may add a line.
"""
MOST_KEYS = 3
"""Changed keys in the row of a plan; its details have more."""
HEADS = ("", "Plan", "Before", "After", "Change", "Of capacity")
ICONS = {"passed": "✅", "failed": "❌", "error": "❌", ACCEPTED: "⚪", WARNED: "⚠️"}
"""The marks of the job summary (:mod:`memcheck.report.markdown`)."""


def full(comparison: PlanDiff, screen: Screen) -> str:
    """Plans that moved, then a line that counts all; nothing at all if quiet and nothing moved."""
    if screen.quiet and not comparison.changes:
        return ""
    return text.document(document(comparison), screen) + "\n"


def document(comparison: PlanDiff) -> list[tuple[Block, ...]]:
    """A group of blocks for each plan that moved, and one that counts all."""
    counts = ", ".join(part for part in (headline(comparison), rest(comparison)) if part)
    tone = "bad" if comparison.verdicts(FAILS_NOW) else "strong"
    close = Prose(f"{counts} ({comparison.before} -> {comparison.after})", tone)
    return [*((item(change),) for change in comparison.changes), (close,)]


def item(change: Change) -> Item:
    """One plan: what happened to it, then its memory and the components that moved."""
    said = [change.kind, verdict(change)]
    if change.kind == RENAMED and change.before is not None:
        said[0] = f"renamed from {change.before.path}"
    side = change.side
    head = f"{side.name}  {side.path}: {', '.join(part for part in said if part)}"
    codes = change.after.codes if change.after is not None and change.after.status != "passed" else ()
    told = [", ".join(codes), f"first remedy: {change.remedy}" if change.remedy else ""]
    return Item(
        Prose(head, TONES.get(change.verdict, "strong")),
        (
            *(Prose(each) for each in key_lines(change.keys, "->")),
            figures(change),
            *(Prose(each) for each in told if each),
        ),
    )


def figures(change: Change) -> Block:
    """The memory before and after, and the components that moved; a line where there is one state or no change."""
    before, after = change.before, change.after
    if before is None or after is None or change.delta_bytes is None:
        parts = [size(each.needed_bytes) for each in (before, after) if each is not None]
        shares = [f"{percent(each.utilization)} of capacity" for each in (before, after) if each and each.needed_bytes]
        return Prose(", ".join([" -> ".join(parts), " -> ".join(shares)]).rstrip(", "))
    if before.figures == after.figures:
        return Prose(f"{size(after.needed_bytes)}, {percent(after.utilization)} of capacity")
    device = (gib(before.needed_bytes or 0), gib(after.needed_bytes or 0), f"{signed_gib(change.delta_bytes)} GiB")
    used = (percent(before.utilization), percent(after.utilization), points(change))
    rows = [("device memory needed", *device), ("of capacity", *used)]
    if before.capacity_bytes != after.capacity_bytes:
        moved = after.capacity_bytes - before.capacity_bytes
        rows.append(("capacity", gib(before.capacity_bytes), gib(after.capacity_bytes), f"{signed_gib(moved)} GiB"))
    rows += [(f"  {words(name)}", gib(old), gib(new), signed_gib(new - old)) for name, old, new in change.components]
    if moved_host := host(change):
        rows.insert(0 if not change.delta_bytes else len(rows), ("host memory of a node", *moved_host))
    if run := hours(change):
        rows.append(("GPU hours of the run", *run, ""))
    wide = max(len(new) for _, _, new, _ in rows)
    return Table(
        "", (), tuple((what, f"{old} -> {new.rjust(wide)}", delta) for what, old, new, delta in rows), right=(1,)
    )


def markdown(comparison: PlanDiff, screen: Screen | None = None, limit: int = LIMIT) -> str:
    """GitHub-flavoured Markdown for job summaries and one comment: empty when nothing moved.

    The table, then each plan's components folded. What is too long loses details first, then the table's middle.
    """
    if not any(change.moved for change in comparison.changes):
        return ""
    failing = any(change.after is not None and change.after.status != "passed" for change in comparison.changes)
    title = f"### {'❌' if failing else '✅'} memcheck: {headline(comparison)}"
    start = [title, "", *table_lines(HEADS, (), (2, 3, 4))]
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
    name += "".join(f"<br>{code(each)}" for each in key_lines(change.keys, "→", MOST_KEYS))
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
    lines = [f"- {code(each)}" for each in key_lines(change.keys, "→")]
    lines += [""] if lines else []
    if before is not None and after is not None and change.delta_bytes is not None and change.components:
        heads = ("Component", "Before, GiB", "After, GiB", "Change")
        rows = ((words(n), gib(old), gib(new), signed_gib(new - old)) for n, old, new in change.components)
        lines += [*table_lines(heads, rows, (1, 2, 3)), ""]
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


def json(comparison: PlanDiff, screen: Screen | None = None) -> str:
    """``schemas/diff.schema.json``, version 1: fields may be added, never removed. The screen plays no part."""
    grown = [change.delta_bytes for change in comparison.changes if change.delta_bytes is not None]
    found = {
        "diff": 1,
        "memcheck": comparison.version,
        "before": comparison.before,
        "after": comparison.after,
        "summary": {
            **{kind: comparison.kinds(kind) for kind in KINDS},
            "unchanged": comparison.unchanged,
            "minor": comparison.minor,
            "fails_now": comparison.verdicts(FAILS_NOW),
            "passes_now": comparison.verdicts(PASSES_NOW),
            "largest_increase_bytes": max([0, *grown]),
        },
        "changes": [record(change) for change in comparison.changes],
    }
    return dumps(found, indent=1) + "\n"


def record(change: Change) -> dict[str, object]:
    """One changed plan as JSON."""
    delta = change.delta_points
    return {
        "kind": change.kind,
        "name": change.side.name,
        "verdict": change.verdict,
        "delta_bytes": change.delta_bytes,
        "delta_host_bytes": change.delta_host_bytes,
        "delta_points": None if delta is None else round(delta, 4),
        "components_delta_bytes": {name: new - old for name, old, new in change.components},
        "changed_keys": [{"key": key, "before": old, "after": new} for key, old, new in change.keys],
        "remedy": change.remedy or None,
        "before": None if change.before is None else side(change.before),
        "after": None if change.after is None else side(change.after),
    }


def side(plan: Side) -> dict[str, object]:
    """One plan, before or after."""
    estimated = plan.needed_bytes is not None
    return {
        "path": plan.path,
        "document": plan.document,
        "name": plan.name,
        "status": plan.status,
        "device_bytes": plan.device_bytes,
        "needed_bytes": plan.needed_bytes,
        "capacity_bytes": plan.capacity_bytes if estimated else None,
        "utilization": round(plan.utilization, 6) if estimated else None,
        "components_bytes": dict(plan.components_bytes),
        "host_bytes_per_node": plan.host_bytes if estimated else None,
        "host_capacity_bytes": plan.host_capacity_bytes,
        "errors": list(plan.codes),
        "accepted": plan.mark == ACCEPTED,
        "verdict": plan.verdict or None,
        "gpu_hours": None if plan.gpu_hours is None else round(plan.gpu_hours, 2),
    }


FORMATS = {"full": full, "markdown": markdown, "json": json}


def key_lines(changes: tuple[Changed, ...], arrow: str, most: int = MOST) -> list[str]:
    """Lines such as ``training.micro_batch_size 2 -> 6``: at most ``most`` changes, then the number of further ones."""
    lines = [f"{clean(key)} {_short(old)} {arrow} {_short(new)}" for key, old, new in changes[:most]]
    return lines if len(changes) <= most else [*lines, f"{len(changes) - most:,} more"]


def _short(item: object) -> str:
    text = " ".join(clean(value(item)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def signed_gib(count: int) -> str:
    """``+2.10``; with more digits where two would hide that something moved."""
    for digits in (2, 4, 9):
        text = f"{count / 2**30:+,.{digits}f}"
        if not count or float(text.replace(",", "")):
            break
    return text


def points(change: Change) -> str:
    """``+2.6 points``."""
    delta = change.delta_points
    return "" if delta is None else f"{delta:+.1f} points"


def size(count: int | None) -> str:
    """GiB, or why there is none."""
    return "no estimate" if count is None else f"{gib(count)} GiB"


def host(change: Change) -> tuple[str, str, str] | None:
    """A node's memory before and after, and by how much it moved; None where it did not."""
    before, after, delta = change.before, change.after, change.delta_host_bytes
    if before is None or after is None or delta is None:
        return None
    if not delta and before.host_capacity_bytes == after.host_capacity_bytes:
        return None
    return of_node(before), of_node(after), f"{signed_gib(delta)} GiB"


def of_node(side: Side) -> str:
    """``2,102.66 of 512.00``, or the need alone where the plan does not say what a node has."""
    has = "" if side.host_capacity_bytes is None else f" of {gib(side.host_capacity_bytes)}"
    return f"{gib(side.host_bytes)}{has}"


def hours(change: Change) -> tuple[str, str] | None:
    """GPU hours of the run before and after; None where neither plan states its steps."""
    found = [None if side is None else side.gpu_hours for side in (change.before, change.after)]
    if found == [None, None]:
        return None
    before, after = ("not stated" if each is None else f"{each:,.{0 if each >= 100 else 1}f}" for each in found)
    return before, after


def is_accepted(change: Change) -> bool:
    """Whether the plan passes only because something hides its errors."""
    return change.after is not None and change.after.mark == ACCEPTED


def verdict(change: Change) -> str:
    """What became of the verdict, in words: a plan that went has none, and a failing plan that still fails is named."""
    after = change.after
    if change.verdict in VERDICTS and not is_accepted(change):
        return VERDICTS[change.verdict]
    if after is not None and after.status != "passed":
        return "still fails"
    told = [ACCEPTED] if is_accepted(change) else []
    told += ["uncertain"] if after is not None and after.verdict == "uncertain" else []
    return ", ".join(told)


def headline(comparison: PlanDiff) -> str:
    """``1 plan fails now, 2 changed, 1 added``; the kinds count every plan once, verdicts come first."""
    failing = comparison.verdicts(FAILS_NOW)
    parts = [f"{plural(failing, 'plan')} fail{'s' if failing == 1 else ''} now"] if failing else []
    accepted = sum(is_accepted(change) and change.verdict == PASSES_NOW for change in comparison.changes)
    if passing := comparison.verdicts(PASSES_NOW) - accepted:
        parts.append(f"{plural(passing, 'plan')} pass{'es' if passing == 1 else ''} now")
    if accepted:
        parts.append(f"{plural(accepted, 'plan')} {'is' if accepted == 1 else 'are'} accepted now")
    parts += [f"{count} {kind}" for kind in KINDS if (count := comparison.kinds(kind))]
    return ", ".join(parts) or "nothing moved"


def rest(comparison: PlanDiff) -> str:
    """``11 unchanged, 2 moved less than asked for``."""
    parts = [f"{comparison.unchanged} {UNCHANGED}"] if comparison.unchanged else []
    if comparison.minor:
        parts.append(f"{comparison.minor} moved by less than the minimum")
    return ", ".join(parts)
