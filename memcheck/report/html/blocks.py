"""Every kind of block in HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from memcheck.report.html import bars
from memcheck.report.html.escape import code, text
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


def block(item: Block, name: str) -> str:
    """One block; ``name`` says in words where it stands, for those who do not see."""
    return RENDER[type(item)](item, name)


def badge(verdict: Verdict) -> str:
    """A verdict."""
    return f'<span class="badge {verdict.tone}">{text(verdict.word)}</span>'


def prose(item: Prose, name: str) -> str:
    """A paragraph."""
    return f'<p class="soft small prose">{text(item.text)}</p>'


def chart(item: Chart, name: str) -> str:
    """Bars as rows, or upright."""
    if item.upright:
        return bars.upright(item)
    rows = []
    for bar in item.bars:
        title = f"{bar.label}: {bar.figure} GiB"
        note = f'<span class="soft small optional">{text(bar.note)}</span>' if bar.note else ""
        rows.append(
            f'<li><div class="row"><span>{text(bar.label)} {note}</span><b class="figure">{text(bar.figure)}</b></div>'
            f"{bars.row(bar, item.scale, title)}</li>"
        )
    return f'<ul class="ranks">{"".join(rows)}</ul>'


def table(item: Table, name: str) -> str:
    """A table with a caption and heads for its columns and rows."""

    def kinds(column: int) -> str:
        found = [word for word, columns in (("num", item.right), ("optional", item.optional)) if column in columns]
        return f' class="{" ".join(found)}"' if found else ""

    def cell(column: int, value: str, key: str = "") -> str:
        shown = code(value) if column in item.code else text(value)
        if column:
            return f"<td{kinds(column)}>{shown}</td>"
        return f'<th scope="row"{kinds(column)}>{swatch(key)}{shown}</th>'

    heads = "".join(f'<th scope="col"{kinds(i)}>{text(head)}</th>' for i, head in enumerate(item.heads))
    keys = item.keys or ("",) * len(item.rows)
    body = [
        f"<tr>{''.join(cell(i, value, key) for i, value in enumerate(row))}</tr>"
        for row, key in zip(item.rows, keys, strict=True)
    ]
    foot = [f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>" for row in item.foot]
    end = f"<tfoot>{''.join(foot)}</tfoot>" if foot else ""
    return (
        f"<table><caption>{text(item.caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody>{end}</table>"
    )


def swatch(key: str) -> str:
    """A component's colour; its name stands beside it."""
    if not key:
        return ""
    return f'<svg class="swatch" aria-hidden="true"><rect class="c-{css(key)}" width="100%" height="100%"/></svg>'


def cards(item: Cards, name: str) -> str:
    """Alternatives in a grid."""
    return f'<ul class="grid">{"".join(card(each) for each in item.cards)}</ul>'


def card(item: Card) -> str:
    """One alternative."""
    bar = bars.row(item.chart.bars[0], item.chart.scale, item.chart.title, height=bars.THIN) if item.chart else ""
    figure = f'<b class="figure">{text(item.figure)}</b>' if item.figure else ""
    lines = "".join(f'<p class="soft small">{text(line)}</p>' for line in item.lines)
    return (
        f'<li><div class="row"><h4>{text(item.title)}</h4>{figure}</div>{bar}'
        f"<p>{badge(Verdict(item.word, item.tone))}</p>{lines}</li>"
    )


def steps(item: RemedySteps, name: str) -> str:
    """Changes, numbered by their place."""
    return f'<ol class="steps">{"".join(step(each) for each in item.steps)}</ol>'


def step(item: RemedyStep) -> str:
    """One change."""
    changes = "".join(
        f"<li><code>{text(key)}: {text(old)} <b>→ {text(new)}</b></code></li>" for key, old, new in item.changes
    )
    costs = "".join(f' <span class="badge {tone}">{text(words)}</span>' for tone, words in item.costs)
    pairs = "".join(pair(bar, chart.scale) for chart in item.charts for bar in chart.bars)
    return (
        f'<li><div class="row"><h4>{text(item.title)}</h4><p>{costs.strip()}</p></div>'
        f'<ul class="changes">{changes}</ul><div class="pair">{pairs}</div></li>'
    )


def pair(bar: Bar, scale: Scale) -> str:
    """Memory before or after."""
    drawn = bars.row(bar, scale, f"{bar.label}: {bar.figure}", height=bars.THIN)
    return f'<span>{text(bar.label)}</span>{drawn}<b class="num">{text(bar.figure)}</b>'


def excerpts(item: Excerpts, name: str) -> str:
    """Findings."""
    return "".join(excerpt(each, f"Lines of {each.head}") for each in item.excerpts)


def excerpt(item: Excerpt, name: str) -> str:
    """One finding with its lines, which a reader without a mouse can scroll, too."""
    severity, _, rest = item.head.partition(" ")
    help = f"<p><b>Help:</b> {text(item.help)}</p>" if item.help else ""
    return (
        f'<div class="finding"><h4><span class="badge {item.tone}">{text(severity)}</span> {text(rest)}</h4>'
        f"<p>{text(item.message)}</p>"
        f'<pre tabindex="0" role="group" aria-label="{text(name)}">{coloured(item.source)}</pre>{help}</div>'
    )


def coloured(source: str) -> str:
    """Terminal text as HTML."""
    found, done = [], 0
    for match in ESCAPE.finditer(source):
        style, inside = STYLES.get(match[1]), text(match[2])
        found += [text(source[done : match.start()]), f'<span class="{style}">{inside}</span>' if style else inside]
        done = match.end()
    return "".join([*found, text(source[done:])])


def formulas(item: Formulas, name: str) -> str:
    """The arithmetic, folded by its section."""
    return "".join(formula(each) for each in item.formulas)


def formula(item: ComponentFormula) -> str:
    """One component's."""
    lines = "".join(f"<p><code>{text(line)}</code></p>" for line in item.lines if line)
    source = f'<p class="soft small">Source: {text(item.source)}</p>' if item.source else ""
    return (
        f'<div class="formula"><h4>{swatch(item.key)}{text(item.name)}: {text(item.figure)}</h4>{lines}{source}</div>'
    )


RENDER: dict[type, Callable[[Any, str], str]] = {
    Prose: prose,
    Chart: chart,
    Table: table,
    Cards: cards,
    RemedySteps: steps,
    Excerpts: excerpts,
    Formulas: formulas,
}
