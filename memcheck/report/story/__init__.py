"""The document that every report for people draws: sections of blocks, as plain typed data.

Text is plain: each renderer escapes it, cuts it to its width and chooses the colours. A tone is one of :data:`TONES`.
Here are the blocks of a plan that passes, :mod:`memcheck.report.story.blocks` has all others.
"""

from __future__ import annotations

from memcheck.record import Record

TONES = ("good", "warn", "bad", "note", "strong", "dim", "")
"""Verdicts from good to bad, a remark, an emphasis, something less important, and plain text."""


class Prose(Record):
    """A paragraph of plain text."""

    text: str
    tone: str = ""


class Fitting(Record):
    """A line with as many of its parts as have room; a renderer without a width shows them all."""

    lead: str
    parts: tuple[str, ...]
    """Parts that follow ``lead``, the most important first, each with the separator before it."""
    ends: tuple[str, ...] = ()
    """The end of the line for each number of parts, from 0 on; empty: the line has no end."""
    least: int = 0
    """Parts that are shown even if they need a second line."""

    def with_parts(self, count: int) -> str:
        """The line with its first ``count`` parts."""
        return self.lead + "".join(self.parts[:count]) + (self.ends[count] if self.ends else "")


class PlanHead(Record):
    """The name of a plan with the word for its verdict."""

    name: str
    path: str
    word: str = ""
    """``pass``, ``fail`` or ``accepted``; empty where the verdict is not part of the head."""
    tone: str = ""


class Gauge(Record):
    """One memory as a bar: what is needed of it, the cache on top of that, and the limit."""

    needed_bytes: int
    seen_bytes: int
    """What is needed, and the cache on top of it."""
    capacity_bytes: int
    limit_bytes: int
    """The most that the policy allows."""
    tone: str
    share: str
    """How full the memory is, such as ``45.2%``."""
    numbers: str
    """The figures in words."""


class PlanSummary(Record):
    """A plan in a few lines: head, bar, and the facts that fit."""

    head: PlanHead
    gauge: Gauge
    lines: tuple[Prose | Fitting, ...]
