"""The source lines that a finding speaks about, with the place underlined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memcheck.edge.screen import Screen
from memcheck.edge.text import beginning, clean, one_line, width, wrap
from memcheck.finding import Finding, Location
from memcheck.record import Record


class Underline(Record):
    """One underlined place of a snippet, with the note about it."""

    location: Location
    label: str
    primary: bool


def snippet(
    finding: Finding,
    sources: Mapping[str, tuple[str, ...]],
    screen: Screen,
    *,
    compact: bool = False,
    tight: bool = False,
) -> list[str]:
    """Lines from ``-->`` to the last underline; places in one file share a block, in order of their lines.

    ``compact``: notes about other places follow their lines, each note once, and gaps between lines are not shown.
    ``tight``: no empty line, and no mark of the file as a whole where other places are marked.
    """
    marks = [Underline(finding.location, finding.location.note, True)]
    whole = is_whole_file(finding.location)
    others = [(label, where) for label, where in finding.related if not (whole and where == finding.location)]
    marks += [Underline(where, _label(label, where.note), False) for label, where in others]
    if tight and others and whole:
        del marks[0]
        whole = False
    gutter = len(str(max(mark.location.span.line for mark in marks)))
    paths = dict.fromkeys(mark.location.path for mark in marks)
    style = finding.severity
    lines: list[str] = []
    for path in paths:
        here = sorted((mark for mark in marks if mark.location.path == path), key=_order)
        lead = next((mark for mark in here if mark.primary), here[0]).location.span
        arrow = "-->" if not lines else ":::"
        lines.append(f"{' ' * gutter}{screen.paint(arrow, 'gutter')} {one_line(path)}:{lead.line}:{lead.column}")
        if len(marks) > 1 or not whole:
            found = (_compact if compact else _block)(here, sources.get(path, ()), gutter, style, screen)
            lines += found[1:-1] if tight and not compact else found
    return lines


def is_whole_file(where: Location) -> bool:
    """Whether a place stands for the whole file: no line of it says more than the others."""
    return where.span.is_empty and (where.span.line, where.span.column) == (1, 1) and not where.note


def _label(label: str, note: str) -> str:
    return f"{label} ({note})" if label and note else label or note


def _order(mark: Underline) -> tuple[int, int]:
    return mark.location.span.line, mark.location.span.column


def _block(marks: list[Underline], source: tuple[str, ...], gutter: int, style: str, screen: Screen) -> list[str]:
    bar = screen.paint("|", "gutter")
    empty = f"{' ' * gutter} {bar}"
    lines = [empty]
    shown = 0
    for number, here in _by_line(marks).items():
        if number > len(source):
            continue  # a place after the end of the file, or a file that could not be read: the header says where
        if shown and number == shown + 2:
            lines.append(_source_line(shown + 1, source[shown], gutter, screen))
        elif shown and number > shown + 2:
            lines.append(screen.paint("...", "gutter"))
        shown = number
        lines += _marked(number, source[number - 1], here, gutter, style, screen)
    return [*lines, empty] if len(lines) > 1 else []


def _by_line(marks: list[Underline]) -> dict[int, list[Underline]]:
    """Marks by their line, in the order in which they come."""
    found: dict[int, list[Underline]] = {}
    for mark in marks:
        found.setdefault(mark.location.span.line, []).append(mark)
    return found


def _marked(number: int, line: str, marks: list[Underline], gutter: int, style: str, screen: Screen) -> list[str]:
    """A line with its marks below it; a long line once for each part of it that has marks."""
    empty = f"{' ' * gutter} {screen.paint('|', 'gutter')}"
    rows = []
    for offset, here in _windows(line, marks, screen.columns - gutter - 3):
        rows.append(_source_line(number, line, gutter, screen, offset))
        for mark in here:
            rows += [f"{empty} {row}" for row in _underline(mark, line, offset, gutter, style, screen)]
    return rows


def _windows(line: str, marks: list[Underline], room: int) -> list[tuple[int, list[Underline]]]:
    """The parts of a line that are shown: how many characters each leaves out on the left, and the marks in view."""
    if len(line) <= room:
        return [(0, marks)]
    groups: list[list[Underline]] = []
    for mark in sorted(marks, key=_order):
        if groups and _end(mark) - groups[-1][0].location.span.column < room - MARGIN:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    found = []
    for here in groups:
        first, last = here[0].location.span.column, max(map(_end, here))
        offset = _offset(line, first, room)
        if last - offset >= room:
            offset = max(offset, min(last + 1 - room, first - MARGIN))
        found.append((offset, here))
    return found


MARGIN = 8
"""Characters of a long line that are shown on the left of a mark, if the mark is as long as the screen allows."""


def _end(mark: Underline) -> int:
    """The column of the last character of a mark on its first line."""
    span = mark.location.span
    return max(span.column, span.end_column - 1) if span.end_line == span.line else span.column


def _compact(marks: list[Underline], source: tuple[str, ...], gutter: int, style: str, screen: Screen) -> list[str]:
    """Every line once. A note about it follows on the same line if there is room, else below the underlined place."""
    by_line = _by_line([mark for mark in marks if mark.location.span.line <= len(source)])
    room = screen.columns - gutter - 3
    told = dict(_notes(by_line))
    notes = {number: note for number, note in told.items() if note and _fits(source[number - 1], note, room)}
    column = max((width(clean(source[number - 1])) for number in notes), default=0) + len(GAP)
    lines: list[str] = []
    for number, here in by_line.items():
        if told.get(number) == "":
            continue
        text = source[number - 1]
        shown = notes.get(number)
        if shown:
            line = _source_line(number, text, gutter, screen)
            start = min(column, room - len(POINTER) - width(shown))  # a long note begins further left
            gap = " " * (start - width(clean(text)))
            lines.append(f"{line}{gap}{screen.paint(POINTER + shown, 'info')}")
        else:
            lines += _marked(number, text, here, gutter, style, screen)
    return lines


GAP, POINTER = "  ", "<- "


def _notes(by_line: Mapping[int, list[Underline]]) -> Iterator[tuple[int, str]]:
    """What is said of each line but the finding's own: nothing twice, so that nothing may be left."""
    said: set[str] = set()
    for number, here in by_line.items():
        if any(mark.primary for mark in here):
            said.update(mark.label for mark in here)
            continue
        told = dict.fromkeys(mark.label for mark in here if mark.label and mark.label not in said)
        said.update(told)
        yield number, clean(", ".join(told))


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


def _source_line(number: int, line: str, gutter: int, screen: Screen, offset: int = 0) -> str:
    room = screen.columns - gutter - 3
    dots = screen.glyph("ellipsis")
    seen = line[offset : offset + _most(room)]
    text = clean(seen)
    if offset:
        text = dots + text[len(dots) :]
    if offset + len(seen) < len(line) or width(text) > room:
        text = beginning(text, room - len(dots)) + dots
    return f"{screen.paint(str(number).rjust(gutter), 'gutter')} {screen.paint('|', 'gutter')} {text}".rstrip()


def _underline(mark: Underline, line: str, offset: int, gutter: int, style: str, screen: Screen) -> list[str]:
    span = mark.location.span
    room = screen.columns - gutter - 3
    end = span.end_column - 1 if span.end_line == span.line else len(line.rstrip())
    start = min(max(span.column - 1, offset), len(line))
    left = width(clean(line[offset : min(start, offset + _most(room))]))
    length = max(1, width(clean(line[start : min(end, start + _most(room))])))
    left = min(left, room - 1)
    length = min(length, room - left)
    under = " " * left + screen.paint(("^" if mark.primary else "-") * length, style if mark.primary else "info")
    if not mark.label:
        return [under]
    label = clean(mark.label)
    paint = style if mark.primary else "info"
    if left + length + 1 + width(label) <= room:
        return [f"{under} {screen.paint(label, paint)}"]
    # The label goes below, moved left as far as it must to be read in few lines.
    indent = max(0, min(left, room - min(width(label), room // 2)))
    return [under, *(" " * indent + screen.paint(part, paint) for part in wrap(label, room - indent))]
