"""Amounts of memory growth: ``2GiB``, ``500 MiB`` or ``5%`` of what the plan needed before."""

from __future__ import annotations

import re
from fractions import Fraction

from memcheck.record import Record
from memcheck.review.diff.types import FAILS_NOW, SAME, Change, PlanDiff

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
