"""Two states of plans: what each plan needs, which earlier plan is which later one, and by how much it moved."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from memcheck import __version__
from memcheck.plan.finding import Finding
from memcheck.plan.read import SHORT
from memcheck.record import Record
from memcheck.rules.result import PlanResult

ADDED, REMOVED, RENAMED, CHANGED, UNCHANGED = "added", "removed", "renamed", "changed", "unchanged"
FAILS_NOW, PASSES_NOW, SAME = "fails-now", "passes-now", "same"
PASSED = "passed"
ACCEPTED, WARNED = "accepted", "warned"
UNCOUNTED = frozenset({"memcheck", "name", "description", "extends"})
"""Keys at the top that change nothing about the job."""

Changed = tuple[str, object, object]
"""A dotted key, its value before and after; None where it is not stated."""


class Side(Record):
    """One plan, before or after."""

    path: str
    """The plan file's path as the report shows it."""
    key: str
    """The path that both sides share: from the compared folder, from the repository, or empty for two files."""
    document: int
    name: str
    status: str
    """``passed`` | ``failed`` | ``error``."""
    needed_bytes: int | None = None
    """None when the plan could not be estimated."""
    capacity_bytes: int = 0
    utilization: float = 0.0
    components_bytes: Mapping[str, int] = MappingProxyType({})
    """What ``needed_bytes`` is made of."""
    codes: tuple[str, ...] = ()
    """``MEM101 exceeds-capacity``, once each: the errors."""
    host_bytes: int = 0
    """What the processes of a node need of its memory at most."""
    host_capacity_bytes: int | None = None
    """None where the plan does not state it."""
    device_bytes: int | None = None
    """What is seen, the allocator's cache included."""
    mark: str = ""
    """``accepted`` or ``warned`` for a plan that passes so, as ``check`` marks it."""
    verdict: str = ""
    """``fits`` | ``uncertain`` | ``does_not_fit``; empty where it is not known."""
    values: object = None
    """The plan as plain data; None where it is not known."""
    gpu_hours: float | None = None
    """None where the plan does not state its steps."""

    @property
    def figures(self) -> tuple[object, ...]:
        """What has to be equal for a plan to count as the same."""
        parts = tuple(sorted((name, count) for name, count in self.components_bytes.items() if count))
        host = (self.host_bytes, self.host_capacity_bytes, self.mark == ACCEPTED, self.gpu_hours)
        return (self.status, self.needed_bytes, self.capacity_bytes, parts, *host, self.codes)


class Change(Record):
    """One plan, before and after; one of them is None for plans that came or went."""

    before: Side | None
    after: Side | None
    remedy: str = ""
    """The first change that would make a plan pass that fails now; empty where none is known."""

    @property
    def keys(self) -> tuple[Changed, ...]:
        """The keys of the plan that changed; none where a side is missing or not known."""
        before, after = self.before, self.after
        if before is None or after is None or before.values is None or after.values is None:
            return ()
        return changed_keys(before.values, after.values)

    @property
    def kind(self) -> str:
        """``added`` | ``removed`` | ``renamed`` | ``changed`` | ``unchanged``."""
        before, after = self.before, self.after
        if before is None:
            return ADDED
        if after is None:
            return REMOVED
        if before.key != after.key:
            return RENAMED
        return UNCHANGED if before.figures == after.figures else CHANGED

    @property
    def moved(self) -> bool:
        """Whether anything but the plan's place differs."""
        return self.before is None or self.after is None or self.before.figures != self.after.figures

    @property
    def side(self) -> Side:
        """The plan as it is now, or as it was when it is gone."""
        side = self.after or self.before
        if side is None:
            raise ValueError("a change without a plan")
        return side

    @property
    def delta_bytes(self) -> int | None:
        """By how much the need for device memory grew; None unless both sides were estimated."""
        if self.before is None or self.after is None:
            return None
        before, after = self.before.needed_bytes, self.after.needed_bytes
        return None if before is None or after is None else after - before

    @property
    def delta_host_bytes(self) -> int | None:
        """By how much the need for a node's memory grew; None unless both sides were estimated."""
        if self.before is None or self.after is None or self.delta_bytes is None:
            return None
        return self.after.host_bytes - self.before.host_bytes

    @property
    def delta_points(self) -> float | None:
        """By how many points of a hundred the utilization grew."""
        if self.before is None or self.after is None or self.delta_bytes is None:
            return None
        return 100 * (self.after.utilization - self.before.utilization)

    @property
    def verdict(self) -> str:
        """``fails-now`` (also for a new plan), ``passes-now``, or ``same``."""
        passed = self.before is None or self.before.status == PASSED
        if self.after is None or (self.after.status == PASSED) == passed:
            return SAME
        return PASSES_NOW if self.after.status == PASSED else FAILS_NOW

    @property
    def components(self) -> list[tuple[str, int, int]]:
        """Components that moved: name, bytes before, bytes after."""
        before: Mapping[str, int] = self.before.components_bytes if self.before else {}
        after: Mapping[str, int] = self.after.components_bytes if self.after else {}
        pairs = [(name, before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys((*before, *after))]
        return [(name, old, new) for name, old, new in pairs if old != new]

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Sorts what fails now first, then what fails still, then by growth; a plan that came grew from nothing."""
        now = (self.after.needed_bytes or 0) if self.after else 0
        before = (self.before.needed_bytes or 0) if self.before else 0
        passes = self.after is None or self.after.status == PASSED
        return (self.verdict != FAILS_NOW, passes, before - now)


class PlanDiff(Record):
    """Every plan of two states."""

    version: str
    before: str
    """What is compared with, in words: a ref, a folder, a file."""
    after: str
    changes: tuple[Change, ...]
    """What is worth showing, ranked."""
    unchanged: int = 0
    """Plans that did not move; a file that did not change counts once."""
    minor: int = 0
    """Plans that moved by less than ``--min-delta``, without a change of verdict."""

    def kinds(self, kind: str) -> int:
        """Changes of one kind."""
        return sum(change.kind == kind for change in self.changes)

    def verdicts(self, verdict: str) -> int:
        """Changes of one verdict."""
        return sum(change.verdict == verdict for change in self.changes)


def changed_keys(before: object, after: object) -> tuple[Changed, ...]:
    """The keys whose values differ, in the order of the plans."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return tuple((key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key))


def _flat(values: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no mapping, under its dotted key; what is written as one word under the field that it is."""
    if not isinstance(values, dict):
        yield path, values
        return
    for name, item in values.items():
        if not path and name in UNCOUNTED:
            continue
        key = f"{path}.{name}" if path else str(name)
        if key in SHORT and not isinstance(item, dict):
            yield f"{key}.{SHORT[key]}", item
        elif isinstance(item, dict) and item:
            yield from _flat(item, key)
        else:
            yield key, item


UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_AMOUNT = re.compile(r"\+?(\d{1,12}(?:\.\d{1,12})?)\s*([A-Za-z]+|%)", re.ASCII)


class Amount(Record):
    """A number of bytes, or a share of the plan's earlier device memory."""

    written: str
    bytes: int = 0
    share: Fraction | None = None

    def of(self, before: int) -> int:
        """The bytes that it means for a plan that needed ``before``."""
        return self.bytes if self.share is None else int(before * self.share)


def amount(written: str) -> Amount:
    """Read one amount.

    Raises:
        ValueError: it is none.
    """
    match = _AMOUNT.fullmatch(written.strip())
    if match is None or (match[2] != "%" and match[2].lower() not in UNITS):
        raise ValueError(f"{written!r} is no amount of memory: write 2GiB, 500MiB or 5%")
    number = Fraction(match[1])
    if match[2] == "%":
        return Amount(written.strip(), share=number / 100)
    return Amount(written.strip(), int(number * UNITS[match[2].lower()]))


def exceeds(change: Change, limits: tuple[Amount, ...]) -> bool:
    """Whether a plan grew by more than one of the limits; one that can no longer be estimated may have."""
    if not limits or change.before is None or change.after is None or change.before.needed_bytes is None:
        return False
    delta = change.delta_bytes
    return delta is None or any(delta > limit.of(change.before.needed_bytes) for limit in limits)


def is_minor(change: Change, least: Amount | None) -> bool:
    """Whether a change is too small to show: it moved less than ``least`` and its verdict stayed."""
    delta = change.delta_bytes
    if least is None or change.verdict != SAME or change.before is None or delta is None:
        return False
    host = abs(change.delta_host_bytes or 0)
    if host and host >= least.of(change.before.host_bytes):
        return False
    return abs(delta) < least.of(change.before.needed_bytes or 0)


def fails(comparison: PlanDiff, limits: tuple[Amount, ...], *, on_regression: bool) -> list[Change]:
    """The changes that fail the run."""
    return [
        change
        for change in comparison.changes
        if exceeds(change, limits) or (on_regression and change.verdict == FAILS_NOW)
    ]


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
