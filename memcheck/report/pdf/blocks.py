"""Every kind of block as flowables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from reportlab.platypus import Flowable, KeepTogether, Paragraph, Preformatted, Spacer
from reportlab.platypus import Table as Grid

from memcheck.edge.text import wrap
from memcheck.report.pdf import style
from memcheck.report.pdf.charts import BarRow, Moments
from memcheck.report.pdf.style import colour, markup, swatch, tinted, words
from memcheck.report.story.blocks import (
    Block,
    Card,
    Cards,
    Chart,
    ComponentFormula,
    Excerpt,
    Excerpts,
    Formulas,
    Prose,
    RemedyStep,
    RemedySteps,
    Table,
)

ESCAPE = re.compile(r"\x1b\[[\d;]*m")
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


def steps(item: RemedySteps, width: float) -> list[Flowable]:
    """Changes under each other, below what they ask for."""
    found: list[Flowable] = [Paragraph(markup(item.title), style.SUBHEAD)] if item.title else []
    return found + [step(each, number, width) for number, each in enumerate(item.steps, start=item.first)]


def step(item: RemedyStep, number: int, width: float) -> Flowable:
    """One change: keys, costs, memory before and after."""
    costs = ", ".join(tinted(text, tone) for tone, text in item.costs)
    parts: list[Flowable] = [
        Paragraph(f"{number}. {markup(item.title)}", style.SUBHEAD),
        Paragraph(costs, style.CELL),
    ]
    parts += [Paragraph(markup(f"{key}: {old} → {new}"), style.CODE) for key, old, new in item.changes]
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
    severity, _, rest = item.head.partition(" ")
    lines = [part for line in ESCAPE.sub("", item.source).split("\n") for part in wrap(words(line), SOURCE_COLUMNS)]
    found = [
        Paragraph(f"{tinted(severity, item.tone)} {markup(rest)}", style.SUBHEAD),
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
    RemedySteps: steps,
    Excerpts: excerpts,
    Formulas: formulas,
}
