"""Every kind of block in HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from memcheck.report.html import bars
from memcheck.report.html.escape import NOTHING, Html, code, joined, shape, tag, text
from memcheck.report.html.palette import css
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
    Prose,
    RemedyStep,
    RemedySteps,
    Scale,
    Table,
)
from memcheck.report.verdict import Verdict

ESCAPE = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
STYLES = {"1;31": "bad", "1;35": "warn", "0;36": "note"}
"""The terminal's colours of marks; what is only dimmed or a frame stays plain."""


def block(item: Block, name: str) -> Html:
    """One block; ``name`` says in words where it stands, for those who do not see."""
    return RENDER[type(item)](item, name)


def badge(verdict: Verdict) -> Html:
    """The word of a verdict in its colour."""
    return tag("span", text(verdict.word), class_=f"badge {verdict.tone}")


def prose(item: Prose, name: str) -> Html:
    """A paragraph of the report as HTML."""
    return tag("p", text(item.text), class_="soft small prose")


def chart(item: Chart, name: str) -> Html:
    """Bars as rows, or upright."""
    if item.upright:
        return bars.upright(item)
    rows = []
    for bar in item.bars:
        note = tag("span", text(bar.note), class_="soft small optional") if bar.note else NOTHING
        named = tag("span", text(f"{bar.label} "), note)
        head = tag("div", named, tag("b", text(bar.figure), class_="figure"), class_="row")
        rows.append(tag("li", head, bars.row(bar, item.scale, f"{bar.label}: {bar.figure} GiB")))
    return tag("ul", *rows, class_="ranks")


def table(item: Table, name: str) -> Html:
    """A table with a caption and heads for its columns and rows."""

    def kinds(column: int) -> str | None:
        found = [word for word, columns in (("num", item.right), ("optional", item.optional)) if column in columns]
        return " ".join(found) or None

    def cells(row: tuple[str, ...], key: str = "") -> Html:
        found = []
        for column, value in enumerate(row):
            shown = code(value) if column in item.code else text(value)
            if column:
                found.append(tag("td", shown, class_=kinds(column)))
            else:
                found.append(tag("th", swatch(key), shown, scope="row", class_=kinds(column)))
        return tag("tr", *found)

    heads = (tag("th", text(head), scope="col", class_=kinds(i)) for i, head in enumerate(item.heads))
    keys = item.keys or ("",) * len(item.rows)
    foot_keys = item.foot_keys or ("",) * len(item.foot)
    feet = [cells(row, key) for row, key in zip(item.foot, foot_keys, strict=True)]
    return tag(
        "table",
        tag("caption", text(item.caption)),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *(cells(row, key) for row, key in zip(item.rows, keys, strict=True))),
        tag("tfoot", *feet) if feet else NOTHING,
    )


def swatch(key: str) -> Html:
    """A small square in a component's colour, for the legend; nothing for an empty key."""
    if not key:
        return NOTHING
    colour = shape("rect", class_=f"c-{css(key)}", width="100%", height="100%")
    return tag("svg", colour, class_="swatch", aria_hidden="true")


def cards(item: Cards, name: str) -> Html:
    """Cards of alternatives, in a grid."""
    return tag("ul", *(card(each) for each in item.cards), class_="grid")


def card(item: Card) -> Html:
    """The card of one alternative: title, verdict, lines."""
    bar = bars.row(item.chart.bars[0], item.chart.scale, item.chart.title, height=bars.THIN) if item.chart else NOTHING
    figure = tag("b", text(item.figure), class_="figure") if item.figure else NOTHING
    lines = (tag("p", text(line), class_="soft small") for line in item.lines)
    head = tag("div", tag("h4", text(item.title)), figure, class_="row")
    return tag("li", head, bar, tag("p", badge(Verdict(item.word, item.tone))), *lines)


def steps(item: RemedySteps, name: str) -> Html:
    """Changes, numbered by their place among all, below what they ask for."""
    title = tag("p", tag("b", text(item.title))) if item.title else NOTHING
    return joined((title, tag("ol", *(step(each) for each in item.steps), class_="steps", start=item.first)))


def step(item: RemedyStep) -> Html:
    """One remedy as a list item: title, costs, the keys that change, and bars before and after."""
    changes = (
        tag("li", tag("code", text(f"{key}: {old} "), tag("b", text(f"→ {new}")))) for key, old, new in item.changes
    )
    costs = joined((tag("span", text(words), class_=f"badge {tone}") for tone, words in item.costs), " ")
    pairs = (pair(bar, chart.scale) for chart in item.charts for bar in chart.bars)
    head = tag("div", tag("h4", text(item.title)), tag("p", costs), class_="row")
    return tag("li", head, tag("ul", *changes, class_="changes"), tag("div", *pairs, class_="pair"))


def pair(bar: Bar, scale: Scale) -> Html:
    """One line of a remedy: the memory before it or after it, as a thin bar with its figure."""
    drawn = bars.row(bar, scale, f"{bar.label}: {bar.figure}", height=bars.THIN)
    return joined((tag("span", text(bar.label)), drawn, tag("b", text(bar.figure), class_="num")))


def excerpts(item: Excerpts, name: str) -> Html:
    """The findings on a plan, one after the other."""
    return joined(excerpt(each, f"Lines of {each.head}") for each in item.excerpts)


def excerpt(item: Excerpt, name: str) -> Html:
    """One finding with its lines, which a reader without a mouse can scroll, too."""
    severity, _, rest = item.head.partition(" ")
    return tag(
        "div",
        tag("h4", tag("span", text(severity), class_=f"badge {item.tone}"), text(f" {rest}")),
        tag("p", text(item.message)),
        tag("pre", coloured(item.source), tabindex=0, role="group", aria_label=name),
        tag("p", tag("b", text("Help:")), text(f" {item.help}")) if item.help else NOTHING,
        class_="finding",
    )


def coloured(source: str) -> Html:
    """Terminal text as HTML."""
    found, done = [], 0
    for match in ESCAPE.finditer(source):
        style, inside = STYLES.get(match[1]), text(match[2])
        found += [text(source[done : match.start()]), tag("span", inside, class_=style) if style else inside]
        done = match.end()
    return joined([*found, text(source[done:])])


def formulas(item: Formulas, name: str) -> Html:
    """The arithmetic, folded by its section."""
    return joined(formula(each) for each in item.formulas)


def formula(item: ComponentFormula) -> Html:
    """The arithmetic of one component: its name, its bytes, the formula with numbers, and the source."""
    lines = (tag("p", tag("code", text(line))) for line in item.lines if line)
    source = tag("p", text(f"Source: {item.source}"), class_="soft small") if item.source else NOTHING
    return tag(
        "div", tag("h4", swatch(item.key), text(f"{item.name}: {item.figure}")), *lines, source, class_="formula"
    )


RENDER: dict[type, Callable[[Any, str], Html]] = {
    Prose: prose,
    Chart: chart,
    Table: table,
    Cards: cards,
    RemedySteps: steps,
    Excerpts: excerpts,
    Formulas: formulas,
}
