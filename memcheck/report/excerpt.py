"""Lays out the source lines of a finding at a width, with the places underlined: for a terminal, a page and paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memcheck.edge.screen import beginning, clean, one_line, width, wrap
from memcheck.record import Record
from memcheck.report.story.blocks import Excerpt, SourceFile, SourceLine, SourceMark

Row = tuple[tuple[str, str], ...]
"""A line as stretches, each as its text and its style: a severity, ``gutter``, or empty."""

GAP, POINTER = "  ", "<- "
MARGIN = 8
"""Characters of a long line that are shown on the left of a mark, if the mark is as long as the screen allows."""


class Page(Record):
    """What an excerpt is laid out for."""

    columns: int
    ellipsis: str
    gutter: int
    """Columns of a line number."""
    style: str
    """The style of the finding's own place."""

    @property
    def room(self) -> int:
        """Columns of a source line."""
        return self.columns - self.gutter - 3

    @property
    def empty(self) -> tuple[tuple[str, str], ...]:
        """The start of a row without a line number."""
        return (" " * self.gutter + " ", ""), ("|", "gutter")


def rows(
    excerpt: Excerpt, columns: int, *, ellipsis: str = "…", compact: bool = False, tight: bool = False
) -> list[Row]:
    """Lines from ``-->`` to the last underline; places in one file share a block, in order of their lines.

    ``compact``: notes about other places follow their lines, each note once, and gaps between lines are not shown.
    ``tight``: no empty line, and no mark of the file as a whole where other places are marked.
    """
    files = excerpt.files
    if tight and excerpt.whole_file:
        files = tuple(_without_own(files)) or files
    numbers = [line.number for file in files for line in file.lines if line.marks]
    page = Page(
        columns=columns,
        ellipsis=ellipsis,
        gutter=len(str(max([*numbers, *(file.line for file in files)]))),
        style=excerpt.severity,
    )
    found: list[Row] = []
    for file in files:
        arrow = ":::" if found else "-->"
        place = f" {one_line(file.path)}:{file.line}:{file.column}"
        found.append(((" " * page.gutter, ""), (arrow, "gutter"), (place, "")))
        if compact:
            found += _compact(file.lines, page)
        else:
            block = _block(file.lines, page)
            found += block[1:-1] if tight else block
    return found


def _without_own(files: Sequence[SourceFile]) -> Iterator[SourceFile]:
    """The files without the finding's own mark; a file that has no other mark is left out."""
    for file in files:
        lines = [line._replace(marks=tuple(mark for mark in line.marks if not mark.primary)) for line in file.lines]
        marked = [line for line in lines if line.marks]
        if marked:
            yield file._replace(
                line=marked[0].number, column=marked[0].marks[0].column, lines=tuple(_closed(marked, lines))
            )


def _closed(marked: list[SourceLine], lines: list[SourceLine]) -> list[SourceLine]:
    """The marked lines, with those that fill a gap of one line between two of them."""
    numbers = {line.number for line in marked}
    return [line for line in lines if line.marks or {line.number - 1, line.number + 1} <= numbers]


def _block(lines: Sequence[SourceLine], page: Page) -> list[Row]:
    found: list[Row] = [page.empty]
    shown = 0
    for line in lines:
        if line.text is None:
            continue  # a place after the end of the file, or a file that could not be read: the heading says where
        if shown and line.number > shown + 1:
            found.append((("...", "gutter"),))
        shown = line.number
        found += _marked(line, line.text, page) if line.marks else [_source_line(line.number, line.text, page)]
    return [*found, page.empty] if len(found) > 1 else []


def _marked(line: SourceLine, text: str, page: Page) -> list[Row]:
    """A line with its marks below it; a long line once for each part of it that has marks."""
    found: list[Row] = []
    for offset, here in _windows(text, line.marks, page.room):
        found.append(_source_line(line.number, text, page, offset))
        for mark in here:
            found += [(*page.empty, (" ", ""), *row) for row in _underline(mark, text, offset, page)]
    return found


def _windows(line: str, marks: Sequence[SourceMark], room: int) -> list[tuple[int, Sequence[SourceMark]]]:
    """The parts of a line that are shown: how many characters each leaves out on the left, and the marks in view."""
    if len(line) <= room:
        return [(0, marks)]
    groups: list[list[SourceMark]] = []
    for mark in marks:
        if groups and _end(mark) - groups[-1][0].column < room - MARGIN:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    found: list[tuple[int, Sequence[SourceMark]]] = []
    for here in groups:
        first, last = here[0].column, max(map(_end, here))
        offset = _offset(line, first, room)
        if last - offset >= room:
            offset = max(offset, min(last + 1 - room, first - MARGIN))
        found.append((offset, here))
    return found


def _end(mark: SourceMark) -> int:
    """The column of the last character of a mark, if it ends on its line."""
    return mark.column if mark.goes_on else max(mark.column, mark.end_column - 1)


def _compact(lines: Sequence[SourceLine], page: Page) -> list[Row]:
    """Every line once. A note about it follows on the same line if there is room, else below the underlined place."""
    texts = {line.number: line.text for line in lines if line.marks and line.text is not None}
    told = dict(_notes([line for line in lines if line.number in texts]))
    notes = {number: note for number, note in told.items() if note and _fits(texts[number], note, page.room)}
    column = max((width(clean(texts[number])) for number in notes), default=0) + len(GAP)
    found: list[Row] = []
    for line in lines:
        if line.number not in texts or told.get(line.number) == "":
            continue
        text = texts[line.number]
        shown = notes.get(line.number)
        if shown:
            start = min(column, page.room - len(POINTER) - width(shown))  # a long note begins further left
            gap = " " * (start - width(clean(text)))
            found.append((*_source_line(line.number, text, page), (gap, ""), (POINTER + shown, "info")))
        else:
            found += _marked(line, text, page)
    return found


def _notes(lines: Sequence[SourceLine]) -> Iterator[tuple[int, str]]:
    """The notes of each line but the finding's own: nothing twice, so that nothing may be left."""
    said: set[str] = set()
    for line in lines:
        if any(mark.primary for mark in line.marks):
            said.update(mark.label for mark in line.marks)
            continue
        told = dict.fromkeys(mark.label for mark in line.marks if mark.label and mark.label not in said)
        said.update(told)
        yield line.number, clean(", ".join(told))


def _fits(line: str, note: str, room: int) -> bool:
    """Whether a line has room for a note after its text. ``room``: cells."""
    return len(line) <= room and width(clean(line)) + len(GAP) + len(POINTER) + width(note) <= room


def _most(room: int) -> int:
    """Characters of a line that are looked at: marks without a width may follow each other, but not without end.

    A line of one finding after another is measured once for each of them, and so never as a whole.
    """
    return 4 * room


def _offset(line: str, column: int, room: int) -> int:
    """How many characters to leave out on the left so that the marked place of a long line is in view."""
    if column < room * 2 // 3 or (len(line) <= _most(room) and width(clean(line)) <= room):
        return 0
    return max(0, min(column - room // 3, len(line) - room + 4))


def _source_line(number: int, line: str, page: Page, offset: int = 0) -> Row:
    dots, room = page.ellipsis, page.room
    seen = line[offset : offset + _most(room)]
    text = clean(seen)
    if offset:
        text = dots + text[len(dots) :]
    if offset + len(seen) < len(line) or width(text) > room:
        text = beginning(text, room - len(dots)) + dots
    return (str(number).rjust(page.gutter), "gutter"), (" ", ""), ("|", "gutter"), (f" {text}".rstrip(), "")


def _underline(mark: SourceMark, line: str, offset: int, page: Page) -> list[Row]:
    room = page.room
    start = min(max(mark.column - 1, offset), len(line))
    left = width(clean(line[offset : min(start, offset + _most(room))]))
    length = max(1, width(clean(line[start : min(mark.end_column - 1, start + _most(room))])))
    left = min(left, room - 1)
    length = min(length, room - left)
    paint = page.style if mark.primary else "info"
    under: Row = ((" " * left, ""), (("^" if mark.primary else "-") * length, paint))
    if not mark.label:
        return [under]
    label = clean(mark.label)
    if left + length + 1 + width(label) <= room:
        return [(*under, (" ", ""), (label, paint))]
    # The label goes below, moved left as far as it must to be read in few lines.
    indent = max(0, min(left, room - min(width(label), room // 2)))
    return [under, *(((" " * indent, ""), (part, paint)) for part in wrap(label, room - indent))]
