"""Plain tables for ``list``: aligned columns, the last one wrapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memcheck.cli.write import has_width
from memcheck.edge.screen import Screen
from memcheck.report import table as writer
from memcheck.report.story.blocks import NO_ROOM, Table


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    screen: Screen,
    right: frozenset[int],
    instead: str = "take --format json",
) -> str:
    """A head line and one line per row. Columns in ``right`` are aligned there; the last column takes what is left.

    On a narrow screen the columns before the last give way, from the right; the first, a name, stays. In a file or a
    pipe each row is one line, which ``grep`` finds whole. ``instead``: where else the dropped columns are.
    """
    note = NO_ROOM._replace(text=NO_ROOM.text.replace("take --format json", instead), tone="dim")
    found = Table(
        caption="",
        heads=tuple(heads),
        rows=tuple(map(tuple, rows)),
        right=tuple(right),
        optional=tuple(range(len(heads) - 2, 0, -1)),
        notes=(note,),
        flow="wrap",
    )
    return "\n".join(writer.lines(found, screen) if has_width(sys.stdout) else writer.unlimited(found)) + "\n"
