"""Fonts, colours and paragraph styles: those of the HTML report on light paper.

A report on paper: head, index, and every plan on pages of its own, with every kind of block as flowables.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape  # nosec - escapes, parses nothing

from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    CondPageBreak,
    Flowable,
    KeepTogether,
    PageBreak,
    Paragraph,
    Preformatted,
    SimpleDocTemplate,
    Spacer,
)
from reportlab.platypus import Table as Cells

from memcheck.accounts.estimate import CACHE
from memcheck.edge.screen import between, clean, gib, percent, wrap
from memcheck.edge.screen import words as spaced
from memcheck.report import excerpt as source
from memcheck.report.html.shell import BACKGROUNDS, BARS, CACHE_OPACITY, LINES, TEXT
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose
from memcheck.report.story.blocks import (
    Bar,
    Block,
    Card,
    Cards,
    Chart,
    Comparison,
    ComponentFormula,
    Excerpt,
    Excerpts,
    Facts,
    Formulas,
    Grid,
    Item,
    Ledger,
    PlanStory,
    Remedies,
    RemedyStep,
    Scale,
    Segment,
    Story,
    Table,
)
from memcheck.report.story.build import CAPTION, INDEX_LINES, IndexEntry, plan_index

PLAIN, BOLD, MONO = "Helvetica", "Helvetica-Bold", "Courier"
"""Fonts that every PDF reader has, so that none is embedded; they know Windows' Latin characters."""
ARROWS = {ord("→"): "->", ord("−"): "-", ord("│"): "|", ord("─"): "-", ord("…"): "..."}


def colour(name: str) -> HexColor:
    """A role of the palette, a component's or a tone's."""
    return HexColor({**BACKGROUNDS, **TEXT, **BARS, **LINES}[name].light)


def words(text: str) -> str:
    """User text that the fonts can show: what they lack becomes its code."""
    shown = clean(text).translate(ARROWS)
    return "".join(char if _known(char) else f"\\u{ord(char):04x}" for char in shown)


def _known(char: str) -> bool:
    try:
        char.encode("cp1252")
    except UnicodeEncodeError:
        return False
    return True


def markup(text: str) -> str:
    """User text, escaped as content of a paragraph: nothing in it is read as markup."""
    return escape(words(text))


def tinted(text: str, tone: str) -> str:
    """Text as bold markup in the colour of a tone."""
    return f'<font color="{TEXT[tone].light}"><b>{markup(text)}</b></font>'


def swatch(key: str) -> str:
    """A small square in a component's colour, to print before the component's name; empty without a key."""
    shown = f"#{paler(BARS[key].light, CACHE_OPACITY)}" if key == CACHE else BARS[key].light if key else ""
    return f'<font name="ZapfDingbats" color="{shown}" size="7">n</font>&nbsp;&nbsp;' if key else ""


def paler(colour: str, opacity: float) -> str:
    """A colour as it is seen on white paper through so much opacity: words, unlike bars, have none."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "".join(f"{round(255 + (part - 255) * opacity):02x}" for part in parts)


def _style(name: str, size: float, *, font: str = PLAIN, ink: str = "ink", **more: object) -> ParagraphStyle:
    return ParagraphStyle(
        name, fontName=font, fontSize=size, leading=size * 1.32, textColor=colour(ink), splitLongWords=1, **more
    )


BRAND = _style("brand", 8, font=BOLD, ink="soft")
TITLE = _style("title", 20, font=BOLD, spaceAfter=2)
NAME = _style("name", 15, font=BOLD)
HEAD = _style("head", 11, font=BOLD, spaceBefore=12, spaceAfter=4, keepWithNext=1)
SUBHEAD = _style("subhead", 9, font=BOLD)
LEAD = _style("lead", 11, font=BOLD, spaceBefore=4)
BODY = _style("body", 9)
SOFT = _style("soft", 8, ink="soft", spaceAfter=3)
PROSE = _style("prose", 8, ink="soft", spaceAfter=4, keepWithNext=1)
CAPTION_STYLE = _style("caption", 8, ink="soft", spaceBefore=4, spaceAfter=2, keepWithNext=1)
CELL = _style("cell", 8)
STRONG = _style("strong", 8, font=BOLD)
HEADING = _style("heading", 7.5, font=BOLD, ink="soft")
NUMBER = _style("number", 8, alignment=TA_RIGHT)
STRONG_NUMBER = _style("strong-number", 8, font=BOLD, alignment=TA_RIGHT)
NUMBER_HEADING = _style("number-heading", 7.5, font=BOLD, ink="soft", alignment=TA_RIGHT)
CODE = _style("code", 7.2, font=MONO)


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
    return [Paragraph(markup(item.text), PROSE)]


def chart(item: Chart, width: float) -> list[Flowable]:
    """Bars as rows, or upright."""
    if item.upright:
        return [Moments(item, width)]
    rows: list[Flowable] = []
    for bar in item.bars:
        note = f"<b>{markup(bar.figure)}</b> {markup(bar.note)}"
        label = Paragraph(f"{markup(bar.label)}: {note}", CELL)
        rows.append(KeepTogether([label, BarRow(bar, item.scale, width), Spacer(1, 3)]))
    return rows


def table(item: Table, width: float) -> list[Flowable]:
    """A table whose heads come again on every page."""

    def cell(column: int, text: str, *, key: str = "", strong: bool = False) -> Paragraph:
        if column in item.right:
            return Paragraph(markup(text), STRONG_NUMBER if strong else NUMBER)
        kind = STRONG if strong else CODE if column in item.code else CELL
        return Paragraph(swatch(key) + markup(text), kind)

    keys = item.keys or ("",) * len(item.rows)
    heads = [
        Paragraph(markup(head), NUMBER_HEADING if i in item.right else HEADING) for i, head in enumerate(item.heads)
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
    grid = Cells([heads, *rows], colWidths=widths(item, width), repeatRows=1, style=rule, hAlign="LEFT", splitInRow=1)
    return [Paragraph(markup(item.caption), CAPTION_STYLE), grid]


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
    return [Cells(rows, colWidths=[each] * CARDS_PER_ROW, style=looks, hAlign="LEFT", splitInRow=1)]


def card(item: Card, width: float) -> list[Flowable]:
    """The card of one alternative: title, verdict, lines."""
    found: list[Flowable] = [Paragraph(f"<b>{markup(item.title)}</b> {markup(item.figure)}", CELL)]
    if item.chart is not None:
        found += [Spacer(1, 2), BarRow(item.chart.bars[0], item.chart.scale, width, 5), Spacer(1, 1)]
    found.append(Paragraph(tinted(item.word, item.tone), CELL))
    return [*found, *(Paragraph(markup(line), SOFT) for line in item.lines)]


def remedies(item: Remedies, width: float) -> list[Flowable]:
    """Changes under each other, below what they ask for."""
    found: list[Flowable] = []
    for asks, first, steps in item.groups():
        found.append(Paragraph(markup(asks.capitalize()), SUBHEAD))
        found += [step(each, number, width) for number, each in enumerate(steps, start=first)]
    return found


def ledger(item: Ledger, width: float) -> list[Flowable]:
    """A ledger as a table."""
    return table(item.as_table(), width)


def step(item: RemedyStep, number: int, width: float) -> Flowable:
    """One change: keys, costs, memory before and after."""
    costs = ", ".join(tinted(text, tone) for tone, text in item.costs)
    parts: list[Flowable] = [
        Paragraph(f"{number}. {markup(item.title)}", SUBHEAD),
        Paragraph(costs, CELL),
    ]
    parts += [
        Paragraph(markup(each.written or f"{each.key}: {each.before} → {each.after}"), CODE) for each in item.changes
    ]
    rows = [
        [
            Paragraph(markup(bar.label), CELL),
            BarRow(bar, chart.scale, width - 140, 6),
            Paragraph(f"<b>{markup(bar.figure)}</b>", NUMBER),
        ]
        for chart in item.charts
        for bar in chart.bars
    ]
    middle = [("VALIGN", (0, 0), (-1, -1), "MIDDLE"), *CLOSE]
    if rows:
        parts.append(Cells(rows, colWidths=[54, width - 130, 76], style=middle, hAlign="LEFT", splitInRow=1))
    return KeepTogether([*parts, Spacer(1, 5)])


def excerpts(item: Excerpts, width: float) -> list[Flowable]:
    """Findings with their lines."""
    return [KeepTogether(excerpt(each)) for each in item.excerpts]


def excerpt(item: Excerpt) -> list[Flowable]:
    """One finding on the page: severity and rule, message, source lines, help."""
    rows = ("".join(told for told, _ in row) for row in source.rows(item, SOURCE_LAYOUT))
    lines = [part for line in rows for part in wrap(words(line), SOURCE_COLUMNS)]
    found = [
        Paragraph(f"{tinted(item.severity, item.tone)} {markup(f'{item.code} {item.name}')}", SUBHEAD),
        Paragraph(markup(item.message), BODY),
        Preformatted("\n".join(lines), CODE),
    ]
    if item.help:
        found.append(Paragraph(f"<b>Help:</b> {markup(item.help)}", BODY))
    return [*found, Spacer(1, 6)]


def formulas(item: Formulas, width: float) -> list[Flowable]:
    """The arithmetic of all components."""
    return [KeepTogether(formula(each)) for each in item.formulas]


def formula(item: ComponentFormula) -> list[Flowable]:
    """The arithmetic of one component: its name, its bytes, the formula with numbers, and the source."""
    head = f"{swatch(item.key)}{markup(f'{item.name}: {item.figure}')}"
    lines = [Paragraph(markup(line), CODE) for line in item.lines if line]
    source = [Paragraph(markup(f"Source: {item.source}"), SOFT)] if item.source else []
    return [Paragraph(head, SUBHEAD), *lines, *source, Spacer(1, 3)]


def facts(item: Facts, width: float) -> list[Flowable]:
    """Values after their labels."""
    return [Paragraph(f"<b>{markup(row.label)}:</b> {markup(row.text)}", BODY) for row in item.rows]


def gauge(item: Gauge, width: float) -> list[Flowable]:
    """The bar of one memory with its figures."""
    parts = (Segment(item.tone, item.needed_bytes), Segment(CACHE, max(0, item.seen_bytes - item.needed_bytes)))
    scale = Scale(max(item.capacity_bytes, item.seen_bytes, 1), item.capacity_bytes)
    label = Paragraph(f"<b>{markup(item.share)}</b> {markup(item.numbers.strip())}", CELL)
    return [KeepTogether([label, BarRow(Bar("", parts, item.share), scale, width), Spacer(1, 3)])]


def plan_head(item: PlanHead, width: float) -> list[Flowable]:
    """The name of a plan with the word for its verdict."""
    return [Paragraph(f"{markup(item.name)} {markup(item.word)}", SUBHEAD)]


def plan_summary(item: PlanSummary, width: float) -> list[Flowable]:
    """A plan in a few lines."""
    return [flowable for each in (item.head, item.gauge, *item.lines) for flowable in block(each, width)]


RENDER: dict[type, Callable[[Any, float], list[Flowable]]] = {
    Prose: prose,
    Fitting: lambda item, width: prose(Prose(item.with_parts(len(item.parts))), width),
    Facts: facts,
    Gauge: gauge,
    PlanHead: plan_head,
    PlanSummary: plan_summary,
    Item: lambda item, width: [found for each in (item.head, *item.blocks) for found in block(each, width)],
    Chart: chart,
    Table: table,
    Cards: cards,
    Remedies: remedies,
    Ledger: ledger,
    Excerpt: lambda item, width: [KeepTogether(excerpt(item))],
    Excerpts: excerpts,
    Formulas: formulas,
    Comparison: lambda item, width: table(item.as_table(), width),
    Grid: lambda item, width: table(item.as_table(), width),
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


MARGIN = 16 * mm
PADDING = 6
"""Points that ReportLab keeps free inside the margins."""
WIDTH = A4[0] - 2 * (MARGIN + PADDING)
FACTS_PER_ROW = 3
LEAST_ROOM = 130
"""Points below which a section begins on the next page."""


class OutlineEntry(Flowable):
    """An entry of the reader's outline; takes no room."""

    def __init__(self, title: str, key: str, level: int) -> None:
        super().__init__()
        self.title, self.key, self.level = title, key, level

    def wrap(self, *available: float) -> tuple[float, float]:
        """The size of the bookmark on the page, which is zero in width and height."""
        return 0, 0

    def draw(self) -> None:
        """The place and its name."""
        self.canv.bookmarkPage(self.key)
        self.canv.addOutlineEntry(words(self.title), self.key, self.level, closed=self.level > 0)


def document(story: Story) -> bytes:
    """The whole file. The same story gives the same bytes: no date is in it."""
    out = io.BytesIO()
    made = SimpleDocTemplate(
        out,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN,
        title=words(story.title),
        author=f"memcheck {story.version}",
        subject=words(story.summary),
        lang="en",
        invariant=1,
    )

    def footer(canvas: Canvas, _: object) -> None:
        canvas.setFont(PLAIN, 7.5)
        canvas.setFillColor(colour("soft"))
        said = f"Predicted by memcheck {story.version} from plans alone: no GPU, no run."
        canvas.drawString(MARGIN + PADDING, MARGIN / 2, said)
        canvas.drawRightString(A4[0] - MARGIN - PADDING, MARGIN / 2, f"page {canvas.getPageNumber()}")

    made.build(list(pages(story)), onFirstPage=footer, onLaterPages=footer)
    return out.getvalue()


def pages(story: Story) -> list[Flowable]:
    """All flowables of the document, in the order of the pages."""
    found: list[Flowable] = [
        Paragraph("memcheck", BRAND),
        Paragraph(markup(story.title), TITLE),
        Paragraph(markup(story.summary), SOFT),
        Spacer(1, 6),
    ]
    found += [Paragraph(markup(f"Not readable: {path}: {why}"), BODY) for path, why in story.unreadable]
    several = len(story.plans) > 1
    if several:
        found += [OutlineEntry("Plans", "index", 0), *index(story)]
    for number, each in enumerate(story.plans, start=1):
        found += [PageBreak()] if several else []
        found += plan(each, f"plan-{number}")
    return found


def index(story: Story) -> list[Flowable]:
    """A row per plan, which leads to its page; all bars on one axis."""
    found = plan_index(story)
    heads = [Paragraph(head, HEADING) for head in ("Plan", "Verdict", "Memory")]
    heads.append(Paragraph("Used", NUMBER_HEADING))
    looks = [("LINEBELOW", (0, 0), (-1, -1), 0.4, colour("rule")), ("VALIGN", (0, 0), (-1, -1), "MIDDLE"), *CLOSE]
    sizes = [WIDTH * share for share in (0.35, 0.18, 0.36, 0.11)]
    rows = [heads, *map(entry, found.entries)]
    table = Cells(rows, colWidths=sizes, repeatRows=1, style=looks, hAlign="LEFT", splitInRow=1)
    return [Paragraph(CAPTION, SOFT), table, Spacer(1, 4), legend(found.keys), Paragraph(INDEX_LINES, SOFT)]


def entry(item: IndexEntry) -> list[Flowable | str]:
    """One plan of the index."""
    name = f'<a href="#plan-{item.number}" color="{TEXT["link"].light}"><u>{markup(item.plan.name)}</u></a>'
    where = f'<font color="{TEXT["soft"].light}">{markup(item.where)}</font>'
    return [
        Paragraph(f"{name}<br/>{where}", CELL),
        Paragraph(tinted(item.plan.verdict.word, item.plan.verdict.tone), CELL),
        BarRow(item.bar, item.scale, WIDTH * 0.34, 9) if item.bar is not None else "",
        Paragraph(f"<b>{markup(item.plan.used)}</b>", NUMBER),
    ]


def legend(keys: tuple[str, ...]) -> Flowable:
    """The colours of bars with their names."""
    named = (f"{swatch(key)}{markup(spaced(key))}" for key in keys)
    return Paragraph(" &nbsp; ".join(named), SOFT)


def plan(story: PlanStory, anchor: str) -> list[Flowable]:
    """The pages about one plan: verdict, facts, charts, sections."""
    badge = tinted(story.verdict.word, story.verdict.tone)
    found: list[Flowable] = [
        OutlineEntry(story.name, anchor, 0),
        Paragraph(f"{markup(story.name)}&nbsp;&nbsp;{badge}", NAME),
        Paragraph(markup(story.path), SOFT),
        Paragraph(markup(story.lead), LEAD),
        Spacer(1, 4),
    ]
    found += [Big(picture, WIDTH) for picture in story.pictures]
    if story.advice:
        found.append(Paragraph(markup(story.advice), BODY))
    if story.facts:
        found.append(tiles(story))
    for section in story.sections:
        found.append(CondPageBreak(LEAST_ROOM))
        found += [
            OutlineEntry(section.title, f"{anchor}-{section.id}", 1),
            Paragraph(markup(section.title), HEAD),
        ]
        for each in section.blocks:
            found += block(each, WIDTH)
    return found


def tiles(story: PlanStory) -> Flowable:
    """Labels and values in a grid."""
    cells: list[list[Flowable] | str] = [
        [Paragraph(markup(label), SOFT), Paragraph(f"<b>{markup(value)}</b>", BODY)] for label, value in story.facts
    ]
    cells += [""] * (-len(cells) % FACTS_PER_ROW)
    rows = [cells[i : i + FACTS_PER_ROW] for i in range(0, len(cells), FACTS_PER_ROW)]
    looks = [("VALIGN", (0, 0), (-1, -1), "TOP"), *CLOSE]
    return Cells(rows, colWidths=[WIDTH / FACTS_PER_ROW] * FACTS_PER_ROW, style=looks, hAlign="LEFT", splitInRow=1)
