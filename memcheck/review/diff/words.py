"""How changes are said, in every format for people."""

from __future__ import annotations

from memcheck.edge.text import gib, plural
from memcheck.review.diff.types import ACCEPTED, FAILS_NOW, PASSES_NOW, UNCHANGED, Change, PlanDiff, Side

KINDS = ("added", "removed", "renamed", "changed")
VERDICTS = {FAILS_NOW: "fails now", PASSES_NOW: "passes now"}


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
