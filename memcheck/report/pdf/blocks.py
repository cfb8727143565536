"""Every kind of block as flowables. Bars are drawn in points from the lower left corner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, KeepTogether, Paragraph, Preformatted, Spacer
from reportlab.platypus import Table as Grid

from memcheck.accounts.estimate import CACHE
from memcheck.edge.text import between, gib, percent, wrap
from memcheck.report import excerpt as source
from memcheck.report.html.shell import CACHE_OPACITY
from memcheck.report.pdf import style
from memcheck.report.pdf.style import BOLD, PLAIN, colour, markup, swatch, tinted, words
from memcheck.report.story import Prose
from memcheck.report.story.blocks import (
    Bar,
    Block,
    Card,
    Cards,
    Chart,
    ComponentFormula,
    Excerpt,
    Excerpts,
    Formulas,
    Ledger,
    Remedies,
    RemedyStep,
    Scale,
    Table,
)

GAP = 0.5
"""Points of paper between two stretches of a bar."""
SOURCE_LAYOUT = 88
"""Characters that source lines are laid out for."""
SOURCE_COLUMNS = 96
"""Characters of source on a line of paper."""
CARDS_PER_ROW = 4


def block(item: Block, width: float) -> list[Flowable]:
    """One block on paper of some width."""
    return RENDER[type(item)](item, width)


def prose(item: Prose, width: float) -> list[Flowable]:
    """A paragraph of the report as flowables."""
    return [Paragraph(markup(item.text), style.PROSE)]


def chart(item: Chart, width: float) -> list[Flowable]:
    """Bars as rows, or upright."""
    if item.upright:
        return [Moments(item, width)]
    rows: list[Flowable] = []
    for bar in item.bars:
        note = f"<b>{markup(bar.figure)}</b> {markup(bar.note)}"
        label = Paragraph(f"{markup(bar.label)}: {note}", style.CELL)
        rows.append(KeepTogether([label, BarRow(bar, item.scale, width), Spacer(1, 3)]))
    return rows


def table(item: Table, width: float) -> list[Flowable]:
    """A table whose heads come again on every page."""

    def cell(column: int, text: str, *, key: str = "", strong: bool = False) -> Paragraph:
        if column in item.right:
            return Paragraph(markup(text), style.STRONG_NUMBER if strong else style.NUMBER)
        kind = style.STRONG if strong else style.CODE if column in item.code else style.CELL
        return Paragraph(swatch(key) + markup(text), kind)

    keys = item.keys or ("",) * len(item.rows)
    heads = [
        Paragraph(markup(head), style.NUMBER_HEADING if i in item.right else style.HEADING)
        for i, head in enumerate(item.heads)
    ]
    rows = [
        [cell(i, text, key="" if i else key) for i, text in enumerate(row)]
        for row, key in zip(item.rows, keys, strict=True)
    ]
    rows += [
        [cell(i, text, key="" if i else key, strong=True) for i, text in enumerate(row)]
        for row, key in zip(item.foot, item.foot_keys or ("",) * len(item.foot), strict=True)
    ]
    rule = [("LINEBELOW", (0, 0), (-1, -1), 0.4, colour("rule")), ("VALIGN", (0, 0), (-1, -1), "TOP"), *CLOSE]
    if item.foot:
        rule.append(("LINEABOVE", (0, len(rows) - len(item.foot) + 1), (-1, -len(item.foot)), 0.8, colour("soft")))
    grid = Grid([heads, *rows], colWidths=widths(item, width), repeatRows=1, style=rule, hAlign="LEFT", splitInRow=1)
    return [Paragraph(markup(item.caption), style.CAPTION), grid]


CLOSE = [
    ("LEFTPADDING", (0, 0), (-1, -1), 0),
    ("RIGHTPADDING", (0, 0), (-1, -1), 6),
    ("TOPPADDING", (0, 0), (-1, -1), 1.6),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 2.2),
]


def widths(item: Table, width: float) -> list[float]:
    """Figures get what they need; texts share the rest by their longest cells, within reason."""
    longest = [max(len(row[i]) for row in (item.heads, *item.rows, *item.foot)) for i in range(len(item.heads))]
    fixed = {i: max(38.0, 5.2 * longest[i] + 8) for i in item.right}
    weight = {i: float(min(max(length, 8), 48)) for i, length in enumerate(longest) if i not in fixed}
    room = width - sum(fixed.values())
    return [fixed.get(i) or room * weight[i] / sum(weight.values()) for i in range(len(item.heads))]


def cards(item: Cards, width: float) -> list[Flowable]:
    """Alternatives in rows of a grid."""
    each = width / CARDS_PER_ROW
    cells: list[list[Flowable] | str] = [card(one, each - 14) for one in item.cards]
    cells += [""] * (-len(cells) % CARDS_PER_ROW)
    rows = [cells[i : i + CARDS_PER_ROW] for i in range(0, len(cells), CARDS_PER_ROW)]
    places = [(i % CARDS_PER_ROW, i // CARDS_PER_ROW) for i in range(len(item.cards))]
    looks: list[tuple[Any, ...]] = [("BOX", place, place, 0.5, colour("rule")) for place in places]
    looks += [("VALIGN", (0, 0), (-1, -1), "TOP"), ("TOPPADDING", (0, 0), (-1, -1), 4)]
    return [Grid(rows, colWidths=[each] * CARDS_PER_ROW, style=looks, hAlign="LEFT", splitInRow=1)]


def card(item: Card, width: float) -> list[Flowable]:
    """The card of one alternative: title, verdict, lines."""
    found: list[Flowable] = [Paragraph(f"<b>{markup(item.title)}</b> {markup(item.figure)}", style.CELL)]
    if item.chart is not None:
        found += [Spacer(1, 2), BarRow(item.chart.bars[0], item.chart.scale, width, 5), Spacer(1, 1)]
    found.append(Paragraph(tinted(item.word, item.tone), style.CELL))
    return [*found, *(Paragraph(markup(line), style.SOFT) for line in item.lines)]


def remedies(item: Remedies, width: float) -> list[Flowable]:
    """Changes under each other, below what they ask for."""
    found: list[Flowable] = []
    for asks, first, steps in item.groups():
        found.append(Paragraph(markup(asks.capitalize()), style.SUBHEAD))
        found += [step(each, number, width) for number, each in enumerate(steps, start=first)]
    return found


def ledger(item: Ledger, width: float) -> list[Flowable]:
    """A ledger as a table."""
    return table(item.as_table(), width)


def step(item: RemedyStep, number: int, width: float) -> Flowable:
    """One change: keys, costs, memory before and after."""
    costs = ", ".join(tinted(text, tone) for tone, text in item.costs)
    parts: list[Flowable] = [
        Paragraph(f"{number}. {markup(item.title)}", style.SUBHEAD),
        Paragraph(costs, style.CELL),
    ]
    parts += [Paragraph(markup(f"{each.key}: {each.before} → {each.after}"), style.CODE) for each in item.changes]
    rows = [
        [
            Paragraph(markup(bar.label), style.CELL),
            BarRow(bar, chart.scale, width - 140, 6),
            Paragraph(f"<b>{markup(bar.figure)}</b>", style.NUMBER),
        ]
        for chart in item.charts
        for bar in chart.bars
    ]
    middle = [("VALIGN", (0, 0), (-1, -1), "MIDDLE"), *CLOSE]
    bars = Grid(rows, colWidths=[54, width - 130, 76], style=middle, hAlign="LEFT", splitInRow=1)
    return KeepTogether([*parts, bars, Spacer(1, 5)])


def excerpts(item: Excerpts, width: float) -> list[Flowable]:
    """Findings with their lines."""
    return [KeepTogether(excerpt(each)) for each in item.excerpts]


def excerpt(item: Excerpt) -> list[Flowable]:
    """One finding on the page: severity and rule, message, source lines, help."""
    rows = ("".join(told for told, _ in row) for row in source.rows(item, SOURCE_LAYOUT))
    lines = [part for line in rows for part in wrap(words(line), SOURCE_COLUMNS)]
    found = [
        Paragraph(f"{tinted(item.severity, item.tone)} {markup(f'{item.code} {item.name}')}", style.SUBHEAD),
        Paragraph(markup(item.message), style.BODY),
        Preformatted("\n".join(lines), style.CODE),
    ]
    if item.help:
        found.append(Paragraph(f"<b>Help:</b> {markup(item.help)}", style.BODY))
    return [*found, Spacer(1, 6)]


def formulas(item: Formulas, width: float) -> list[Flowable]:
    """The arithmetic of all components."""
    return [KeepTogether(formula(each)) for each in item.formulas]


def formula(item: ComponentFormula) -> list[Flowable]:
    """The arithmetic of one component: its name, its bytes, the formula with numbers, and the source."""
    head = f"{swatch(item.key)}{markup(f'{item.name}: {item.figure}')}"
    lines = [Paragraph(markup(line), style.CODE) for line in item.lines if line]
    source = [Paragraph(markup(f"Source: {item.source}"), style.SOFT)] if item.source else []
    return [Paragraph(head, style.SUBHEAD), *lines, *source, Spacer(1, 3)]


RENDER: dict[type, Callable[[Any, float], list[Flowable]]] = {
    Prose: prose,
    Chart: chart,
    Table: table,
    Cards: cards,
    Remedies: remedies,
    Ledger: ledger,
    Excerpts: excerpts,
    Formulas: formulas,
}


def at(count: int, scale: Scale, length: float) -> float:
    """A number of bytes as a length on the page, in points."""
    return min(1.0, count / scale.full_bytes) * length


class BarRow(Flowable):
    """One horizontal bar on a page, with its scale."""

    def __init__(self, bar: Bar, scale: Scale, width: float, height: float = 8) -> None:
        super().__init__()
        self.bar, self.scale, self.width, self.height = bar, scale, width, height

    def draw(self) -> None:
        """What there is, what is held, and the lines."""
        lie(self.canv, self.bar, self.scale, (0, 0, self.width, self.height))


class Big(Flowable):
    """The bar that says it all, with its interval and names."""

    def __init__(self, chart: Chart, width: float) -> None:
        super().__init__()
        self.chart, self.width, self.height = chart, width, 62

    def draw(self) -> None:
        """From the top: the limit's name, the bar, the interval, the capacity's name."""
        canvas, scale, width = self.canv, self.chart.scale, self.width
        lie(canvas, self.chart.bars[0], scale, (0, 30, width, 20))
        if scale.limit_bytes:
            share = percent(scale.limit_bytes / scale.capacity_bytes)
            say(canvas, at(scale.limit_bytes, scale, width), 53, f"limit {share}", width)
        low, high = self.chart.interval_bytes
        if high:
            first, last = at(low, scale, width), at(high, scale, width)
            canvas.setStrokeColor(colour("soft"))
            canvas.setLineWidth(1)
            canvas.line(first, 25, last, 25)
            for x in (first, last):
                canvas.line(x, 22.5, x, 27.5)
            say(canvas, (first + last) / 2, 13, between((low, high)), width)
        name = f"{self.chart.capacity_name} {gib(scale.capacity_bytes)} GiB"
        say(canvas, at(scale.capacity_bytes, scale, width), 2, name, width, font=BOLD)


class Moments(Flowable):
    """Upright bars next to each other, with one line for the capacity across them."""

    def __init__(self, chart: Chart, width: float) -> None:
        super().__init__()
        self.chart, self.column, self.height = chart, min(80.0, width / len(chart.bars)), 130
        self.width = self.column * len(chart.bars)

    def draw(self) -> None:
        """Figures above, names below."""
        canvas, scale, foot, room = self.canv, self.chart.scale, 14.0, 100.0
        for place, bar in enumerate(self.chart.bars):
            x, y = place * self.column, foot
            for segment in bar.segments:
                height = at(segment.bytes, scale, room)
                fill(canvas, segment.key)
                canvas.rect(x + self.column * 0.12, y, self.column * 0.76, max(0.0, height - GAP), stroke=0, fill=1)
                y += height
            middle = x + self.column / 2
            canvas.setFillColor(colour("ink"))
            canvas.setFont(BOLD, 8)
            canvas.drawCentredString(middle, foot + room + 5, bar.figure)
            canvas.setFont(PLAIN, 8)
            canvas.drawCentredString(middle, 3, words(bar.label))
        canvas.setStrokeColor(colour("soft"))
        canvas.setLineWidth(0.8)
        canvas.line(0, foot, self.width, foot)
        if 0 < scale.capacity_bytes <= scale.full_bytes:
            y = foot + at(scale.capacity_bytes, scale, room)
            canvas.setStrokeColor(colour("ink"))
            canvas.setLineWidth(1.2)
            canvas.line(0, y, self.width, y)


def lie(canvas: Canvas, bar: Bar, scale: Scale, box: tuple[float, float, float, float]) -> None:
    """A bar in a box of left, bottom, width, height."""
    left, bottom, width, height = box
    canvas.setFillColor(colour("track"))
    canvas.rect(left, bottom, at(scale.capacity_bytes, scale, width), height, stroke=0, fill=1)
    start = 0
    for segment in bar.segments:
        x, end = at(start, scale, width), at(start + segment.bytes, scale, width)
        fill(canvas, segment.key)
        canvas.rect(left + x, bottom, max(0.0, end - x - GAP), height, stroke=0, fill=1)
        start += segment.bytes
    canvas.setStrokeColor(colour("ink"))
    if 0 < scale.limit_bytes < scale.full_bytes:
        x = left + at(scale.limit_bytes, scale, width)
        canvas.setLineWidth(0.6)
        canvas.setDash(2, 2)
        canvas.line(x, bottom, x, bottom + height)
        canvas.setDash()
    if 0 < scale.capacity_bytes <= scale.full_bytes:
        x = left + min(at(scale.capacity_bytes, scale, width), width - 0.6)
        canvas.setLineWidth(1.2)
        canvas.line(x, bottom - 1, x, bottom + height)


def fill(canvas: Canvas, key: str) -> None:
    """A stretch's colour; the cache, which is a tail of what is needed, is paler."""
    canvas.setFillColor(colour(key), alpha=CACHE_OPACITY if key == CACHE else 1)


def say(canvas: Canvas, x: float, y: float, text: str, width: float, font: str = PLAIN) -> None:
    """A name at a place, moved inwards as far as it must to stay on the page."""
    canvas.setFont(font, 8)
    canvas.setFillColor(colour("ink" if font == BOLD else "soft"))
    length = canvas.stringWidth(text, font, 8)
    canvas.drawString(min(max(0.0, x - length / 2), width - length), y, text)
