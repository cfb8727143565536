"""A figure that somebody read off a run."""

from __future__ import annotations

import re

from memcheck.errors import UsageError
from memcheck.record import Record

METRICS = ("allocated", "reserved", "device")
UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
SIZE = re.compile(r"([0-9]{1,15}(?:[.,][0-9]+)?)\s*([kmgt]?i?b)", re.IGNORECASE)


class MemoryReading(Record):
    """One figure."""

    metric: str
    """``allocated`` | ``reserved`` | ``device`` | ``any``: which quantity of the estimate it is comparable with."""
    bytes: int
    source: str
    """Where it was read, in words."""
    at_least: bool = False
    """The run asked for more than it got: an out-of-memory message."""


def parse_size(text: str) -> MemoryReading | None:
    """``61.3GiB`` or ``reserved=61.3GiB``; None when the text is no size.

    Raises:
        UsageError: a number without a unit, or an unknown metric.
    """
    metric, equals, rest = text.partition("=")
    if equals and metric.strip().lower() not in METRICS:
        return None
    size = (rest if equals else text).strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", size):
        raise UsageError(f"{text!r} has no unit", "write 61.3GiB (2^30 bytes) or 65.8GB (10^9 bytes)")
    match = SIZE.fullmatch(size)
    if match is None:
        return None
    count = float(match[1].replace(",", "."))
    name = metric.strip().lower() if equals else "any"
    return MemoryReading(name, int(count * UNITS[match[2].lower()]), "the command line")
