"""Applies edits to the bytes of a file, and leaves every other byte as it is."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from memcheck.finding import Edit, Span
from memcheck.plan.text import unbroken

BOM = "\ufeff"

_Group = TypeVar("_Group")


def disjoint(groups: Iterable[tuple[_Group, Sequence[Edit]]]) -> list[tuple[_Group, tuple[Edit, ...]]]:
    """The groups whose edits can all be made together, first come first served; each is taken whole or not at all.

    Equal edits are one: an alias used twice is mended once. Two insertions at one place have no order, so that the
    second waits.
    """
    taken: set[Edit] = set()
    spans: list[Span] = []
    """Spans of the edits that are taken, in order. No two of them overlap."""
    chosen = []
    for group, edits in groups:
        new = sorted({edit for edit in edits if edit not in taken})
        apart = not any(_overlap(one.span, other.span) for one, other in pairwise(new))
        if apart and not any(_meets(spans, edit.span) for edit in new):
            taken.update(new)
            for edit in new:
                insort(spans, edit.span)
            chosen.append((group, tuple(edits)))
    return chosen


def _meets(spans: Sequence[Span], span: Span) -> bool:
    """Whether a span overlaps one of these, of which no two do."""
    at = bisect_left(spans, span)
    return any(_overlap(span, other) for other in spans[max(0, at - 1) : at + 1])


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The file after disjoint edits; line ends in their texts become those of the line they are made on."""
    text = data.decode("utf-8")
    start = len(BOM) if text.startswith(BOM) else 0
    lines = unbroken(text[start:]).splitlines(keepends=True)
    offsets = [start, *accumulate((len(line) for line in lines), initial=start)][1:]

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + column - 1

    parts, at = [], 0
    for edit in sorted(set(edits)):
        span = edit.span
        first = offset(span.line, span.column)
        parts += [text[at:first], edit.text.replace("\n", line_end(lines, span.line))]
        at = offset(span.end_line, span.end_column)
    return "".join([*parts, text[at:]]).encode("utf-8")


def line_end(lines: Sequence[str], number: int) -> str:
    """How a line ends, or the one before it if it is the last."""
    for line in (lines[index] for index in range(min(number, len(lines)) - 1, -1, -1)):
        for end in ("\r\n", "\n", "\r"):
            if line.endswith(end):
                return end
    return "\n"


def _overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a character, or one inserts inside or at the start of the other."""
    first, second = sorted((one, other))
    if (first.line, first.column) == (second.line, second.column):
        return True
    return (second.line, second.column) < (first.end_line, first.end_column)
