"""Which earlier plan is which later one: by file and name, then across files for what was moved or renamed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from memcheck.review.diff.types import Change, Side

Key = Callable[[Side], Hashable]

# A document that was inserted above shifts the numbers of those below it, so names go before numbers.
SAME_FILE: tuple[Key, ...] = (lambda side: (side.key, side.name), lambda side: (side.key, side.document))
OTHER_FILE: tuple[Key, ...] = (lambda side: side.name, lambda side: side.figures if side.needed_bytes else id(side))


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
