"""From two lists of plans to what is worth showing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from memcheck import __version__
from memcheck.finding import Finding
from memcheck.result import PlanResult
from memcheck.review.diff.amount import Amount, exceeds, is_minor
from memcheck.review.diff.types import ACCEPTED, PASSED, UNCHANGED, WARNED, Change, PlanDiff, Side

Key = Callable[[Side], Hashable]

# A document that was inserted above shifts the numbers of those below it, so names go before numbers.
SAME_FILE: tuple[Key, ...] = (lambda side: (side.key, side.name), lambda side: (side.key, side.document))
OTHER_FILE: tuple[Key, ...] = (lambda side: side.name, lambda side: side.figures if side.needed_bytes else id(side))


def compare(
    before: Sequence[Side],
    after: Sequence[Side],
    labels: tuple[str, str],
    *,
    unchanged: int = 0,
    least: Amount | None = None,
    limits: tuple[Amount, ...] = (),
) -> PlanDiff:
    """Pair the plans of both sides and keep the changed ones. ``unchanged``: files that were not read.

    A change that exceeds one of ``limits`` is kept, even if it is below ``least``.
    """
    changes = pair(before, after)
    moved = [change for change in changes if change.kind != UNCHANGED]
    shown = [change for change in moved if exceeds(change, limits) or not is_minor(change, least)]
    shown.sort(key=lambda change: (change.rank, change.side.path, change.side.document))
    same = unchanged + len(changes) - len(moved)
    return PlanDiff(
        version=__version__,
        before=labels[0],
        after=labels[1],
        changes=tuple(shown),
        unchanged=same,
        minor=len(moved) - len(shown),
    )


def side_of(result: PlanResult, path: str, key: str) -> Side:
    """One side from a fresh verdict."""
    side = Side(
        path=path,
        key=key,
        document=result.document,
        name=result.name,
        status=result.status,
        codes=_codes(result.findings),
        mark=mark_of(result),
        verdict=result.verdict,
        values=result.values,
        gpu_hours=result.gpu_hours,
    )
    estimate = result.estimate
    if estimate is None:
        return side
    return side._replace(
        needed_bytes=estimate.needed_bytes,
        device_bytes=estimate.device_bytes,
        capacity_bytes=estimate.capacity_bytes,
        utilization=estimate.utilization,
        components_bytes=estimate.needed_parts_bytes,
        host_bytes=estimate.host_bytes_per_node,
        host_capacity_bytes=result.host_capacity_bytes,
    )


def mark_of(result: PlanResult) -> str:
    """How ``check`` marks a plan that passes."""
    if result.accepted:
        return ACCEPTED
    return WARNED if result.status == PASSED and result.count("warning") else ""


def _codes(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{each.code} {each.name}" for each in findings if each.severity == "error"))


def pair(before: Sequence[Side], after: Sequence[Side]) -> list[Change]:
    """Every plan of both sides, once. Only what is unique on both sides is paired, so that nothing is guessed."""
    old, new = list(before), list(after)
    changes: list[Change] = []
    for key in (*SAME_FILE, *OTHER_FILE):
        before_of, after_of = _unique(old, key), _unique(new, key)
        found = [Change(before_of[each], after_of[each]) for each in before_of if each in after_of]
        taken = {id(side) for change in found for side in change}
        old = [side for side in old if id(side) not in taken]
        new = [side for side in new if id(side) not in taken]
        changes += found
    return changes + [Change(side, None) for side in old] + [Change(None, side) for side in new]


def _unique(sides: list[Side], key: Key) -> dict[Hashable, Side]:
    """The sides whose key no other side has."""
    groups: dict[Hashable, list[Side]] = {}
    for side in sides:
        groups.setdefault(key(side), []).append(side)
    return {each: group[0] for each, group in groups.items() if len(group) == 1}
