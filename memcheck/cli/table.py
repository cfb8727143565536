"""Plain tables for ``list``: aligned columns, the last one wrapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memcheck.cli.terminal import has_width
from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, width, wrap
from memcheck.report.columns import GAP, fitting, left_out

LEAST = 20
"""Columns of the screen that the last column has at least."""


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    screen: Screen,
    right: frozenset[int],
    instead: str = "take --format json",
) -> str:
    """A head line and one line per row. Columns in ``right`` are aligned there; the last column takes what is left.

    On a narrow screen the columns before the last give way, from the right; the first, a name, stays. In a file or a
    pipe each row is one line, which ``grep`` finds whole.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in [list(heads), *cells]) for i in range(len(heads))]
    if not has_width(sys.stdout):
        return "".join(f"{_line(row, widths, right).rstrip()}\n" for row in [list(heads), *cells])
    least = [*widths[:-1], min(widths[-1], LEAST)]
    kept = fitting(least, range(len(heads) - 2, 0, -1), screen.columns)
    note = left_out(heads, kept, instead)
    heads, cells = [heads[i] for i in kept], [[row[i] for i in kept] for row in cells]
    right, widths = frozenset(n for n, i in enumerate(kept) if i in right), [widths[i] for i in kept]
    before = sum(widths[:-1]) + len(GAP) * (len(heads) - 1)
    room = max(LEAST, screen.columns - before)
    lines = [screen.paint(_line(list(heads), widths, right).rstrip(), "dim")]
    for row in cells:
        parts = wrap(row[-1], room)
        lines.append(_line([*row[:-1], parts[0]], widths, right).rstrip())
        lines += [" " * before + part for part in parts[1:]]
    lines += [screen.paint(part, "dim") for part in wrap(note, screen.columns)] if note else []
    return "\n".join(lines) + "\n"


def _line(row: list[str], widths: list[int], right: frozenset[int]) -> str:
    out = []
    for index, (cell, cells) in enumerate(zip(row, widths, strict=True)):
        pad = " " * (cells - width(cell))
        out.append(pad + cell if index in right else cell + pad)
    return GAP.join(out)
