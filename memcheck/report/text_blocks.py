"""Draws findings, remedies, ledgers, charts, tables and formulas on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.edge.screen import Screen, beginning, clean, gib, one_line, percent, width, wrap
from memcheck.report import table
from memcheck.report.excerpt import rows as source_rows
from memcheck.report.story.blocks import (
    Block,
    Cards,
    Chart,
    Comparison,
    Excerpt,
    Excerpts,
    Facts,
    Formulas,
    Grid,
    Item,
    Ledger,
    LedgerRow,
    Remedies,
    RemedyStep,
    Table,
)
from memcheck.report.story.findings import FIXABLE
from memcheck.report.story.remedies import change_lines, moved, price
from memcheck.report.text import bar_style, lines, painted

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module of that name costs more than this one
    from typing import Any

COMMAND = "    "
"""The start of a line of a help that is a command."""
NUMBER = 5
"""Columns of a remedy's number, with the space around it."""
MOST_REMEDIES = 3
"""Remedies of the short layout."""
FIGURES = 25
"""Columns of the two figures of a ledger with the space around them: ``      12.34   123.4%``."""
LEAST_BAR = 10
MOST_BAR = 40
ITEM = 2
"""Columns on the left of what belongs to an item."""


def drawn(item: Block, screen: Screen, indent: int = 0) -> list[str]:
    """The lines of one block."""
    if isinstance(item, Table):
        return table.lines(item, screen, indent)
    if isinstance(item, (Comparison, Grid)):
        return table.lines(item.as_table(), screen, indent)
    if isinstance(item, Facts):
        return facts(item, screen, indent)
    if isinstance(item, Item):
        return [*lines((item.head,), screen, indent), *lines(item.blocks, screen, indent + ITEM)]
    if isinstance(item, Remedies):
        return LAYOUTS.get(item.layout, remedies)(item, screen)
    return DRAWN[type(item)](item, screen)


def excerpt(item: Excerpt, screen: Screen) -> list[str]:
    """A finding: headline, source lines, help."""
    return [*headline(item, screen), *source(item, screen), *help_lines(item.help, screen)]


def help_lines(text: str, screen: Screen, indent: int = 0) -> list[str]:
    """What to do about a finding; no lines without a text."""
    return labelled("help", text, screen, "note", indent) if text else []


def cards(item: Cards, screen: Screen) -> list[str]:
    """A row per card, with its first line."""
    rows = tuple((each.title, each.word, each.figure, each.lines[0] if each.lines else "") for each in item.cards)
    return table.lines(Table("", (), rows, right=(2,), tones=tuple(each.tone for each in item.cards)), screen)


def facts(item: Facts, screen: Screen, indent: int = 0) -> list[str]:
    """Values below each other, each after its label."""
    return [line for row in item.rows for line in labelled(row.label, row.text, screen, row.tone, indent)]


def labelled(label: str, text: str, screen: Screen, tone: str = "strong", indent: int = 0) -> list[str]:
    """``label: text``, wrapped, with the continuation lines under the text."""
    start = f"{label}: "
    room = screen.columns - indent - len(start)
    parts = [line for part in clean(text).split("\n") for line in _wrapped(part, room)]
    pad = " " * (indent + len(start))
    first = f"{' ' * indent}{painted(screen, label + ':', tone)} {parts[0]}"
    return [first, *(f"{pad}{line}" for line in parts[1:])]


def _wrapped(text: str, room: int) -> list[str]:
    """Lines of a text. A command, which is indented, can be copied with its line ends: only a shell's words are parted.

    A plan in quotes is parted as well, where YAML may go on in the next line.
    """
    if not text.startswith(COMMAND):
        return wrap(text, room)
    import re

    found, line = [], ""
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""", text):
        for number, part in enumerate(re.findall(r"[^,]+,?|,", word) if word.startswith("'{") else [word]):
            glue = "" if number or not line.strip() else " "
            if line.strip() and len(line) + len(glue) + len(part) + 2 > room:
                found.append(line if number else f"{line} \\")
                line = "  " + part.strip()
            else:
                line += glue + part
    return [*found, line]


def headline(item: Excerpt, screen: Screen) -> list[str]:
    """``error[MEM101] exceeds-capacity: message``, wrapped with an indent; with a mark where ``--fix`` mends it.

    A message with a brief form is cut to one line, but on a verbose screen.
    """
    label = f"{item.severity}[{item.code}]"
    mark = f" {FIXABLE}" if item.fix else ""
    lead = f"{label}{mark} {item.name}:"
    text = clean(item.message)
    if item.brief and not screen.verbose:
        text = f"{beginning(clean(item.brief), screen.columns - len(lead) - 5).rpartition(' ')[0]} ..."
    told, *others = wrap(text, screen.columns - 2, len(lead) - 1)
    shown = screen.paint(label, item.severity)
    if screen.links:
        from memcheck.report.forge import page

        shown = screen.link(shown, page(item.code))
    first = f"{shown}{screen.paint(mark, 'good')} {screen.paint(item.name + ':', 'strong')} "
    return [first + screen.paint(told, "strong"), *("  " + screen.paint(other, "strong") for other in others)]


def source(item: Excerpt, screen: Screen, *, compact: bool = False, tight: bool = False) -> list[str]:
    """The source lines of a finding, with its places underlined."""
    found = source_rows(item, screen.columns, ellipsis=screen.glyph("ellipsis"), compact=compact, tight=tight)
    return ["".join(screen.paint(text, kind) for text, kind in row) for row in found]


def _pad(text: str, cells: int) -> str:
    return text + " " * (cells - width(text))


def remedies(item: Remedies, screen: Screen, most_lines: int = 1000) -> list[str]:
    """Numbered remedies in at most ``most_lines`` lines: memory and time after the change, then the change itself."""
    figures = [(*(each.after for each in step.measures), step.time) for step in item.steps]
    columns = [max(len(row[i]) for row in figures) for i in range(len(figures[0]))]
    start = NUMBER + sum(columns) + 2 * len(columns)
    rows = []
    for number, (step, row) in enumerate(zip(item.steps[:MOST_REMEDIES], figures, strict=False), item.first):
        *told, taken = (text.rjust(cells) for text, cells in zip(row, columns, strict=True))
        shown = "  ".join([*(painted(screen, text, step.tone) for text in told), taken])
        first, *others = wrap(_change(step), screen.columns - start)
        lead = f"{number}. ".rjust(NUMBER)
        rows.append([f"{lead}{shown}  {first}", *(" " * start + line for line in others)])
    while len(rows) > 1 and 1 + sum(map(len, rows)) > most_lines:
        del rows[-1]
    left = len(item.steps) - len(rows)
    names = ", ".join(each.title for each in item.steps[0].measures)
    more = f"; {item.more.replace('{}', str(left))}" if left else ""
    first, *others = wrap(f"{item.title}: {names}, time, change{more}", screen.columns)
    head = [screen.paint(item.title, "strong") + screen.paint(first[len(item.title) :], "dim")]
    head += [screen.paint(line, "dim") for line in others]
    return [*head, *(line for row in rows for line in row)]


def _change(step: RemedyStep) -> str:
    """The keys that a remedy changes, then its costs in addition to time."""
    paid = [each for each in (*step.takes, step.paid) if each]
    return clean(", ".join(change_lines(step)) + (f" ({'; '.join(paid)})" if paid else ""))


def remedies_in_full(item: Remedies, screen: Screen) -> list[str]:
    """Numbered changes with what each does to the memory, below what the changes of their group ask for."""
    rows = [
        (
            [*change_lines(step), *([f"({step.paid})"] if step.paid else [])],
            [moved(each) for each in step.measures],
            price(step),
        )
        for step in item.steps
    ]
    heads = [each.name for each in item.steps[0].measures]
    wide = [max(len(head), *(len(told[i]) for _, told, _ in rows)) for i, head in enumerate(heads)]
    prices = max(len(paid) for _, _, paid in rows)
    changes = max(width(line) for keys, _, _ in rows for line in keys)
    in_columns = NUMBER + changes + sum(2 + each for each in wide) + 2 + prices <= screen.columns
    named = "".join(f"  {head.ljust(cells)}" for head, cells in zip(heads, wide, strict=True))
    head = f"{_pad(item.title, NUMBER + changes)}{named}  time" if in_columns else f"{item.title}:"
    found = [screen.paint(item.title, "strong") + screen.paint(head[len(item.title) :], "dim")]
    group = ""
    for number, (step, (keys, told, paid)) in enumerate(zip(item.steps, rows, strict=True), item.first):
        if step.group != group:
            group = step.group
            found.append("  " + screen.paint(step.asks, "dim"))
        first = f"{number}. ".rjust(NUMBER)
        if in_columns:
            shown = "  ".join(each.ljust(cells) for each, cells in zip(told, wide, strict=True))
            found.append(f"{first}{_pad(keys[0], changes)}  {painted(screen, shown, step.tone)}  {paid}".rstrip())
            found += [" " * NUMBER + line for line in keys[1:]]
        else:  # too narrow for columns: the effect goes below its change
            wrapped = [part for line in keys for part in wrap(line, screen.columns - NUMBER)]
            tail = wrap(f"{step.effect}  time {paid}", screen.columns - NUMBER)
            found += [first + wrapped[0], *(" " * NUMBER + line for line in wrapped[1:])]
            found += [" " * NUMBER + painted(screen, line, step.tone) for line in tail]
    return found


def ranked_remedies(item: Remedies, screen: Screen) -> list[str]:
    """Each change with what it does to memory and time at the right edge, and below it what it costs."""
    found: list[str] = []
    room = screen.columns - NUMBER
    for number, step in enumerate(item.steps, item.first):
        keys = change_lines(step)
        time = f"time {step.time}" if step.time == "unknown" else f"{step.time} time"
        tail = f"{painted(screen, step.effect, 'good')}  {time}"
        head = f"{number}. ".rjust(NUMBER) if item.first else " " * NUMBER
        if max(map(width, keys)) + 2 + width(step.effect) + 2 + width(time) <= room:
            pad = " " * (room - width(keys[0]) - width(step.effect) - 2 - width(time))
            found += [f"{head}{keys[0]}{pad}{tail}", *(" " * NUMBER + key for key in keys[1:])]
        else:
            wrapped = [part for key in keys for part in wrap(key, room)]
            found += [head + wrapped[0], *(" " * NUMBER + part for part in [*wrapped[1:], tail])]
        costs = "; ".join(text for _, text in step.costs)
        found += [" " * NUMBER + screen.paint(part, "dim") for part in wrap(costs, room)]
    return found


def chart(item: Chart, screen: Screen) -> list[str]:
    """Bars as rows below the title: label, figure, bar, note."""
    bars = item.bars
    first = max(width(bar.label) for bar in bars)
    figures = max(len(bar.figure) for bar in bars)
    notes = max(width(bar.note) for bar in bars)
    room = screen.columns - first - figures - 4
    cells = max(LEAST_BAR, min(MOST_BAR, room - notes - 2))
    found = [screen.paint(item.title, "dim")]
    for bar in bars:
        used = round(bar.bytes / item.scale.full_bytes * cells)
        shown = screen.paint(screen.glyph("full") * used, "bar") + " " * (cells - used)
        text = wrap(clean(bar.note), max(10, room - cells - 2))
        pad = " " * (first + figures + cells + 6)
        found.append(f"{_pad(bar.label, first)}  {bar.figure.rjust(figures)}  {shown}  {text[0]}".rstrip())
        found += [pad + line for line in text[1:]]
    return found


def formulas(item: Formulas, screen: Screen) -> list[str]:
    """Every formula with its numbers, its result and its source."""
    found = [screen.paint(item.title, "dim")]
    for each in item.formulas:
        found.append(f"{screen.paint(each.name, 'strong')}  {each.figure}")
        for text in (*each.lines, f"from {each.source}" if each.source else ""):
            if text:
                found += [f"  {part}" for part in wrap(clean(text), screen.columns - 2)]
    return found


def ledger(item: Ledger, screen: Screen) -> list[str]:
    """A waterfall: a bar for each part where the one before it ends, then the need, what there is, and what is left."""
    need, capacity = item.needed.bytes, item.capacity.bytes
    rows = [*item.parts, item.needed, item.capacity, *((item.cache,) if item.cache else ())]
    first = max(width(text) for text in (item.title, *(one_line(row.label) for row in rows)))
    room = screen.columns - first - FIGURES
    scale = CellScale(max(need, capacity, 1), capacity, room if room >= LEAST_BAR else 0, screen)

    def figures(row: LedgerRow) -> str:
        share = percent(row.bytes / capacity) if capacity else ""
        return f"{_pad(one_line(row.label), first)}{gib(row.bytes).rjust(11)}{share.rjust(13)}"

    found = [screen.paint(f"{item.title.ljust(first)}{'GiB'.rjust(11)}{item.share_head.rjust(13)}", "dim")]
    start = 0
    for part in item.parts:
        found.append(f"{figures(part)} {scale.bar(start, part.bytes, 'bar')}".rstrip())
        start += part.bytes
    found.append(screen.paint(screen.glyph("rule") * (first + FIGURES + scale.cells), "dim"))
    whole = scale.bar(0, need, bar_style(item.tone))
    found.append(f"{screen.paint(figures(item.needed), 'strong')} {whole}".rstrip())
    if item.cache:
        shown = f"{figures(item.cache)} {scale.bar(need, item.cache.bytes, 'dim', 'tail')}"
        found.append(screen.paint(shown.rstrip(), "dim"))
    found.append(f"{figures(item.capacity)} {scale.bar(0, 0, '')}".rstrip())
    found.append(screen.paint(figures(item.slack), "strong" if item.fits else "error"))
    return found + [screen.paint(line, "dim") for line in wrap(item.note, screen.columns) if item.note]


class CellScale:
    """Bytes to terminal cells, with the capacity line drawn through every row."""

    def __init__(self, full: int, capacity: int, cells: int, screen: Screen) -> None:
        self.full = full
        self.cells = cells
        self.screen = screen
        over = full > capacity
        self.limit = min(round(capacity / full * (cells - 1)), cells - 2) if over else cells - 1

    def bar(self, start: int, count: int, style: str, glyph: str = "full") -> str:
        """A bar of ``count`` bytes that starts at byte ``start``; the part above the capacity is shown in red."""
        if not self.cells:
            return ""
        first = self._cell(start)
        last = self._cell(start + count)
        if count and last <= first:  # less than a cell: show one, inside the total unless the capacity line is there
            first = first if last - 1 in (self.limit, -1) else last - 1
            last = first + 1
        row = []
        for cell in range(self.cells):
            inside = first <= cell < last
            if cell == self.limit:
                row.append(("limit", "dim"))
            elif inside:
                row.append((glyph, "bad-bar" if cell > self.limit else style))
            else:
                row.append(("", ""))
        return self._draw(row)

    def _cell(self, count: int) -> int:
        """The cell of a number of bytes. After rounding, too, bytes below the capacity are left of its line."""
        cell = round(count / self.full * self.cells)
        return min(cell, self.cells - 1) if count < self.full else self.cells

    def _draw(self, row: list[tuple[str, str]]) -> str:
        out: list[str] = []
        index = 0
        while index < len(row):
            stop = index
            while stop < len(row) and row[stop] == row[index]:
                stop += 1
            glyph, style = row[index]
            text = (self.screen.glyph(glyph) if glyph else " ") * (stop - index)
            out.append(self.screen.paint(text, style))
            index = stop
        return "".join(out)


LAYOUTS: dict[str, Callable[[Remedies, Screen], list[str]]] = {"long": remedies_in_full, "ranked": ranked_remedies}
DRAWN: dict[type, Callable[[Any, Screen], list[str]]] = {
    Cards: cards,
    Chart: chart,
    Excerpt: excerpt,
    Excerpts: lambda item, screen: [line for each in item.excerpts for line in excerpt(each, screen)],
    Formulas: formulas,
    Ledger: ledger,
}
