"""The one writer of tables for a screen: columns as wide as their content, some of which give way on a narrow one."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.edge.screen import Screen, clean, width, wrap
from memcheck.record import Record
from memcheck.report.story.blocks import Table
from memcheck.report.text import painted

GAP = "  "
LEAST = 12
"""Columns of the screen that a last column of text needs to be shown."""
LEAST_WRAPPED = 20
"""Columns that a wrapped last column has before other columns are dropped for it."""
WIDEST = 30
"""Columns that a value in a list without heads takes at most: the row of a longer one is shifted."""

Row = Sequence[str]


def lines(table: Table, screen: Screen, indent: int = 0) -> list[str]:
    """The table with its caption, its heads and its notes, as lines of a screen."""
    indent += table.indent
    room = screen.columns - indent
    rows = [[clean(cell) for cell in row] for row in table.rows]
    heads, found = list(table.heads), [painted(screen, table.caption, "dim")] if table.caption else []
    if table.short_heads:
        if sum(widths([heads, *rows])) + len(GAP) * (len(heads) - 1) > room:
            heads = list(table.short_heads)
            found += [clean(note) for note in table.short_notes]
        found.append("")
    layout = layout_of(table, heads, rows, room, screen)
    pad = " " * indent
    under = pad + GAP if table.groups else pad
    if heads:
        found.append(under + painted(screen, layout.line(heads), "dim"))
    group = ""
    for number, row in enumerate(rows):
        if table.groups and table.groups[number] != group:
            group = table.groups[number]
            found += [pad + painted(screen, part, "strong") for part in wrap(clean(group), room)]
        tone = table.tones[number] if table.tones else ""
        found += [under + painted(screen, part, tone) if part else part for part in layout.rows(row)]
    return found + notes(table, heads, layout.kept, screen)


def unlimited(table: Table) -> list[str]:
    """The table for a file or a pipe: every column, and each row on one line."""
    rows = [list(table.heads), *([clean(cell) for cell in row] for row in table.rows)]
    found = widths(rows)
    layout = ColumnLayout(
        widths=found, kept=list(range(len(found))), right=frozenset(table.right), room=sum(found), flow="", ellipsis=""
    )
    return [layout.line(row) for row in rows]


def notes(table: Table, heads: Row, kept: Sequence[int], screen: Screen) -> list[str]:
    """What the columns mean, below an empty line."""
    shown = [head for index, head in enumerate(heads) if index in kept]
    dropped = [head for index, head in enumerate(heads) if index not in kept]
    told = [(text, note.tone) for note in table.notes if (text := note.about(shown, dropped))]
    if table.one_note and told:
        told = [(" ".join(text for text, _ in told), told[0][1])]
    found = [painted(screen, line, tone) for text, tone in told for line in wrap(clean(text), screen.columns)]
    return ["", *found] if found else []


class ColumnLayout(Record):
    """The columns of a table that a screen shows, and how wide each of them is."""

    widths: list[int]
    kept: list[int]
    right: frozenset[int]
    room: int
    flow: str
    ellipsis: str

    def line(self, row: Row) -> str:
        """One row on one line, without blanks at its end."""
        return GAP.join(self._cell(row, index) for index in self.kept).rstrip()

    def _cell(self, row: Row, index: int) -> str:
        text, cells = row[index], self.widths[index]
        if width(text) > cells and self.flow == "start":
            text = self.ellipsis + text[len(text) - cells + len(self.ellipsis) :]
        pad = " " * (cells - width(text))
        return pad + text if index in self.right else text + pad

    def rows(self, row: Row) -> list[str]:
        """One row; where its last column wraps, on several lines."""
        if self.flow == "cut":
            return [self._cut(row)]
        if self.flow != "wrap":
            return [self.line(row)[: self.room].rstrip() if self.flow else self.line(row)]
        *before, last = self.kept
        head = "".join(self._cell(row, index) + GAP for index in before)
        room = self.room - width(head)
        if room < LEAST:
            return [part for text in (f"{row[0]}: {row[1]}", row[last]) for part in wrap(text, self.room)]
        first, *others = wrap(row[last], room)
        if last in self.right:
            first = first.rjust(self.widths[last])
        return [f"{head}{first}".rstrip(), *(" " * width(head) + part for part in others)]

    def _cut(self, row: Row) -> str:
        """The row with the end of its last column left out, or without that column."""
        *before, last = self.kept
        room = self.room - sum(self.widths[index] for index in before) - len(GAP) * len(before)
        text = row[last] if width(row[last]) <= room else row[last][: max(0, room - len(self.ellipsis))] + self.ellipsis
        return GAP.join([*(self._cell(row, index) for index in before), text if room >= LEAST else ""]).rstrip()


def layout_of(table: Table, heads: Row, rows: Sequence[Row], room: int, screen: Screen) -> ColumnLayout:
    """The widths of the columns; those that give way are left out."""
    found = widths([heads, *rows] if heads else rows)
    if table.groups:
        room -= len(GAP)
    if table.flow == "wrap" and not heads:
        found = [found[0], *(min(WIDEST, each) for each in found[1:-1]), found[-1]]
    least = [*found[:-1], min(found[-1], LEAST_WRAPPED)] if table.flow == "wrap" else found
    kept = fitting(least, table.optional, room)
    dots = screen.glyph("ellipsis")
    if table.flow == "start":
        (code,) = table.code
        others = sum(found[index] for index in range(len(found)) if index not in (code, *table.optional))
        found[code] = min(found[code], max(LEAST, room - others - len(GAP) * (len(found) - 1 - len(table.optional))))
    return ColumnLayout(
        widths=found, kept=kept, right=frozenset(table.right), room=room, flow=table.flow, ellipsis=dots
    )


def widths(rows: Sequence[Row]) -> list[int]:
    """The cells of the widest text of each column."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]


def fitting(found: Sequence[int], optional: Sequence[int], room: int) -> list[int]:
    """The columns that fit next to each other; the optional ones give way in their order, and no other does."""
    kept = list(range(len(found)))
    for index in optional:
        if sum(found[i] for i in kept) + len(GAP) * (len(kept) - 1) <= room:
            break
        kept.remove(index)
    return kept
