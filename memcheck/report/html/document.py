"""The body of a report: its answer, an index where there are several plans, then one part per plan. Bars are SVG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memcheck.accounts.estimate import CACHE
from memcheck.edge.screen import between, gib, percent, words
from memcheck.report import excerpt as source
from memcheck.report.html.grid import grid
from memcheck.report.html.shell import NOTHING, Html, code, css, joined, shape, tag, text
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
    Section,
    Segment,
    Story,
    Table,
    Verdict,
)
from memcheck.report.story.build import CAPTION, INDEX_LINES, IndexEntry, plan_index

OPEN = "Open this plan in the page"
BIG, ROW, THIN, UPRIGHT = 34, 17, 10, 180
"""Heights of the kinds of bars, in pixels."""
GAP = 1
"""Pixels of background between two stretches."""
PLAIN_TONES = ("good", "warn", "bad", "note")


def place(count: int, scale: Scale) -> str:
    """Bytes as a share of the axis."""
    share = f"{100 * min(1.0, count / scale.full_bytes):.2f}".rstrip("0").rstrip(".")
    return f"{share}%"


def label(key: str) -> str:
    """The name of a segment's component; empty for a segment that only has a tone."""
    return "" if key in PLAIN_TONES else words(key)


def stretches(bar: Bar, scale: Scale, height: int) -> Html:
    """Rectangles from left to right, each with its name and size as a tooltip."""
    found, start = [], 0
    for segment in bar.segments:
        name = f"{label(segment.key)} {gib(segment.bytes)} GiB".strip()
        x, width = place(start, scale), place(segment.bytes, scale)
        if width != "0%":
            title = tag("title", text(name))
            found.append(tag("rect", title, class_=f"c-{css(segment.key)}", x=x, width=width, height=height))
            if start:
                found.append(shape("rect", class_="gap", x=x, width=GAP, height=height))
        start += segment.bytes
    return joined(found)


def track(scale: Scale, height: int) -> Html:
    """What there is: from nothing to the capacity."""
    end = place(min(scale.capacity_bytes, scale.full_bytes), scale)
    return shape("rect", class_="track", width=end, height=height)


def scale_lines(scale: Scale, height: int) -> Html:
    """The plan's limit, thin; the capacity, thick. Both stand inside the picture at its right end."""
    found = []
    if 0 < scale.limit_bytes < scale.full_bytes:
        x = place(scale.limit_bytes, scale)
        found.append(shape("line", class_="limit", x1=x, x2=x, y2=height))
    if 0 < scale.capacity_bytes < scale.full_bytes:
        x = place(scale.capacity_bytes, scale)
        found.append(shape("line", class_="line", x1=x, x2=x, y2=height))
    elif scale.capacity_bytes == scale.full_bytes:
        found.append(tag("svg", shape("line", class_="line", x1=-1, x2=-1, y2=height), x="100%", overflow="visible"))
    return joined(found)


def bar_row(bar: Bar, scale: Scale, title: str, *, height: int = ROW) -> Html:
    """One bar as SVG, with its scale and ``title``, the text for screen readers. ``height``: pixels."""
    body = (track(scale, height), stretches(bar, scale, height), scale_lines(scale, height))
    return tag("svg", tag("title", text(title)), *body, class_="bar", height=height, role="img")


def big(chart: Chart) -> Html:
    """The bar that says it all: with the interval below it, and names on its lines."""
    (bar,), scale = chart.bars, chart.scale
    low, high = chart.interval_bytes
    parts = [track(scale, BIG), stretches(bar, scale, BIG), scale_lines(scale, BIG + 4)]
    if scale.limit_bytes:
        parts.append(said(scale.limit_bytes, scale, -5, f"limit {percent(scale.limit_bytes / scale.capacity_bytes)}"))
    y = BIG + 9
    if high:
        a, b = place(low, scale), place(high, scale)
        parts.append(shape("line", class_="span", x1=a, x2=b, y1=y, y2=y))
        parts += [shape("line", class_="span", x1=x, x2=x, y1=y - 4, y2=y + 4) for x in (a, b)]
        parts.append(said((low + high) // 2, scale, y + 17, between(chart.interval_bytes)))
        y += 18
    named = f"{chart.capacity_name} {gib(scale.capacity_bytes)} GiB"
    parts.append(said(scale.capacity_bytes, scale, y + 17, named, "strong"))
    return tag("svg", tag("title", text(chart.title)), *parts, class_="bar big", height=y + 22, role="img")


def said(count: int, scale: Scale, y: int, what: str, kind: str | None = None) -> Html:
    """A name at a place of the axis, turned inwards at both ends."""
    share = count / scale.full_bytes
    anchor = "start" if share < 0.3 else "end" if share > 0.7 else "middle"
    return tag("text", text(what), class_=kind, x=place(count, scale), y=y, text_anchor=anchor)


def upright(chart: Chart) -> Html:
    """Bars side by side with their figures above and their names below; one line of capacity runs through all."""
    items = (
        tag("li", tag("b", text(bar.figure)), column(bar, chart.scale), tag("span", text(bar.label)))
        for bar in chart.bars
    )
    return tag("ol", *items, class_="moments")


def column(bar: Bar, scale: Scale) -> Html:
    """One upright bar as SVG."""
    found, top = [], 0
    for segment in bar.segments:
        top += segment.bytes
        height = place(segment.bytes, scale)
        if height == "0%":
            continue
        name = tag("title", text(f"{label(segment.key)} {gib(segment.bytes)} GiB"))
        y = place(scale.full_bytes - top, scale)
        found.append(tag("rect", name, class_=f"c-{css(segment.key)}", x="12%", y=y, width="76%", height=height))
        found.append(shape("rect", class_="gap", x="12%", y=y, width="76%", height=GAP))
    if 0 < scale.capacity_bytes < scale.full_bytes:
        y = place(scale.full_bytes - scale.capacity_bytes, scale)
        found.append(shape("line", class_="line", y1=y, x2="100%", y2=y))
    elif scale.capacity_bytes == scale.full_bytes:
        found.append(shape("line", class_="line", y1=1, x2="100%", y2=1))
    title = tag("title", text(f"{bar.label}: {bar.figure} GiB"))
    return tag("svg", title, *found, class_="column", height=UPRIGHT, role="img")


HALVES = frozenset({"memory", "step"})
"""Sections that are next to each other on a wide screen."""
SOURCE_COLUMNS = 88
"""Characters of a source line."""
TONES = {"error": "bad", "warning": "warn", "info": "note"}
"""The classes of marks on source lines; a gutter stays plain."""


def body(story: Story) -> Html:
    """Everything inside ``<main>``."""
    head = tag(
        "header",
        tag("p", text("memcheck"), class_="brand"),
        tag("h1", text(story.title)),
        tag("p", text(story.summary), class_="soft"),
    )
    parts = [head]
    if story.unreadable:
        parts.append(unreadable(story))
    if len(story.plans) > 1:
        parts.append(index(story))
    parts += [plan(each, number) for number, each in enumerate(story.plans, start=1)]
    return joined(parts, "\n")


def unreadable(story: Story) -> Html:
    """Paths that could not be read."""
    items = (tag("li", tag("code", text(path)), text(f": {why}")) for path, why in story.unreadable)
    return tag("div", tag("h2", text("Not readable")), tag("ul", *items), class_="card")


def index(story: Story) -> Html:
    """A line per plan: name, verdict, share, bar; all bars on one axis."""
    found = plan_index(story)
    return tag(
        "nav",
        tag("p", text(CAPTION), class_="soft small"),
        tag("ol", *map(entry, found.entries), class_="index"),
        tag("p", *(tag("span", swatch(key), text(words(key))) for key in found.keys), class_="legend soft small"),
        tag("p", text(INDEX_LINES), class_="soft small"),
        class_="card",
        aria_label="Plans",
    )


def entry(item: IndexEntry) -> Html:
    """One plan of the index."""
    drawn = [bar_row(item.bar, item.scale, item.plan.pictures[0].title)] if item.bar is not None else []
    name = tag("a", text(item.plan.name), href=f"#plan-{item.number}")
    return tag(
        "li",
        tag("div", name, tag("span", text(item.where), class_="soft small under")),
        tag("div", badge(item.plan.verdict)),
        tag("b", text(item.plan.used), class_="num"),
        tag("div", *drawn, class_="place"),
    )


def parts(story: PlanStory) -> tuple[Html, Html, Html, Html]:
    """The answer on a plan: its sentence, its bars, the first thing to do, the facts; empty where there is none."""
    rows = (tag("div", tag("dt", text(label)), tag("dd", text(value))) for label, value in story.facts)
    return (
        tag("p", tag("b", text(story.lead)), class_="lead"),
        joined(map(big, story.pictures)),
        tag("p", text(story.advice)) if story.advice else NOTHING,
        tag("dl", *rows, class_="tiles") if story.facts else NOTHING,
    )


def plan(story: PlanStory, number: int) -> Html:
    """The part of the page about one plan: verdict, facts, charts, sections."""
    anchor = f"plan-{number}"
    halves = HALVES if {each.id for each in story.sections} >= HALVES else frozenset()
    cards = (section(each, f"{anchor}-{each.id}", story.name, half=each.id in halves) for each in story.sections)
    return tag(
        "section",
        tag("div", tag("h2", text(story.name)), badge(story.verdict), class_="head"),
        tag("p", tag("code", text(story.path)), class_="soft small"),
        tag("p", tag("a", text(OPEN), href=story.page_link), class_="small") if story.page_link else NOTHING,
        tag("div", *parts(story), class_="card"),
        tag("div", *cards, class_="cards"),
        class_="plan",
        id=anchor,
    )


def section(item: Section, anchor: str, name: str, *, half: bool) -> Html:
    """Blocks in a card under their heading; long sections are folded. ``half``: half the width of a wide screen."""
    inside = [block(each, f"{item.title}: {name}") for each in item.blocks]
    heading = tag("h3", text(item.title), id=anchor)
    parts = [tag("details", tag("summary", heading), *inside)] if item.folded else [heading, *inside]
    return tag("div", *parts, class_="card half" if half else "card")


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
        return upright(item)
    rows = []
    for bar in item.bars:
        note = tag("span", text(bar.note), class_="soft small optional") if bar.note else NOTHING
        named = tag("span", text(f"{bar.label} "), note)
        head = tag("div", named, tag("b", text(bar.figure), class_="figure"), class_="row")
        rows.append(tag("li", head, bar_row(bar, item.scale, f"{bar.label}: {bar.figure} GiB")))
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


def ledger(item: Ledger, name: str) -> Html:
    """A ledger as a table."""
    return table(item.as_table(), name)


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
    bar = bar_row(item.chart.bars[0], item.chart.scale, item.chart.title, height=THIN) if item.chart else NOTHING
    figure = tag("b", text(item.figure), class_="figure") if item.figure else NOTHING
    lines = (tag("p", text(line), class_="soft small") for line in item.lines)
    head = tag("div", tag("h4", text(item.title)), figure, class_="row")
    return tag("li", head, bar, tag("p", badge(Verdict(item.word, item.tone))), *lines)


def remedies(item: Remedies, name: str) -> Html:
    """Changes, numbered by their place among all, below what they ask for."""
    parts: list[Html] = []
    for asks, first, steps in item.groups():
        parts.append(tag("p", tag("b", text(asks.capitalize()))))
        parts.append(tag("ol", *map(step, steps), class_="steps", start=first))
    return joined(parts)


def step(item: RemedyStep) -> Html:
    """One remedy as a list item: title, costs, the keys that change, and bars before and after."""
    changes = (
        tag("li", tag("code", text(each.written)))
        if each.written
        else tag("li", tag("code", text(f"{each.key}: {each.before} "), tag("b", text(f"→ {each.after}"))))
        for each in item.changes
    )
    costs = joined((tag("span", text(words), class_=f"badge {tone}") for tone, words in item.costs), " ")
    pairs = (pair(bar, chart.scale) for chart in item.charts for bar in chart.bars)
    head = tag("div", tag("h4", text(item.title)), tag("p", costs), class_="row")
    parts = (head, tag("ul", *changes, class_="changes"), tag("div", *pairs, class_="pair"))
    return tag("li", *parts, data_remedy=item.id)


def pair(bar: Bar, scale: Scale) -> Html:
    """One line of a remedy: the memory before it or after it, as a thin bar with its figure."""
    drawn = bar_row(bar, scale, f"{bar.label}: {bar.figure}", height=THIN)
    return joined((tag("span", text(bar.label)), drawn, tag("b", text(bar.figure), class_="num")))


def excerpts(item: Excerpts, name: str) -> Html:
    """The findings on a plan, one after the other."""
    return joined(map(excerpt, item.excerpts))


def excerpt(item: Excerpt) -> Html:
    """One finding with its lines, which a reader without a mouse can scroll, too."""
    named = f"{item.code} {item.name}"
    return tag(
        "div",
        tag("h4", tag("span", text(item.severity), class_=f"badge {item.tone}"), text(f" {named}")),
        tag("p", text(item.message)),
        tag("pre", lines(item), tabindex=0, role="group", aria_label=f"Lines of {item.severity} {named}"),
        tag("p", tag("b", text("Help:")), text(f" {item.help}")) if item.help else NOTHING,
        class_="finding",
    )


def lines(item: Excerpt) -> Html:
    """The source lines of a finding, with its marks in colour."""

    def stretch(told: str, style: str) -> Html:
        return tag("span", text(told), class_=TONES[style]) if told and style in TONES else text(told)

    rows = source.rows(item, SOURCE_COLUMNS)
    return joined((joined(stretch(told, style) for told, style in row) for row in rows), "\n")


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


def comparison(item: Comparison, name: str) -> Html:
    """Subjects by quantities, with the best figure of each quantity in bold."""
    best = [frozenset(item.best(number)) for number in range(len(item.quantities))]
    heads = (tag("th", text(head), scope="col", class_="num" if i > 1 else None) for i, head in enumerate(item.heads))
    rows = []
    for row, each in enumerate(item.subjects):
        cells = [tag("th", text(f"{each.label} {item.own_words}" if each.own else each.label), scope="row")]
        for number, figure in enumerate(each.figures):
            shown = tag("b", text(figure)) if row in best[number] else text(figure)
            cells.append(tag("td", shown, class_="num" if number else None))
        rows.append(tag("tr", *cells))
    notes = " ".join(told for note in item.notes if not note.own and (told := note.about(item.heads, ())))
    whole = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), aria_label=name)
    return joined((whole, prose(Prose(notes), name) if notes else NOTHING))


def facts(item: Facts, name: str) -> Html:
    """Values under their labels."""
    return tag(
        "dl", *(tag("div", tag("dt", text(r.label)), tag("dd", text(r.text))) for r in item.rows), class_="tiles"
    )


def gauge(item: Gauge, name: str) -> Html:
    """The bar of one memory with its figures."""
    parts = (Segment(item.tone, item.needed_bytes), Segment(CACHE, max(0, item.seen_bytes - item.needed_bytes)))
    full = max(item.capacity_bytes, item.seen_bytes, 1)
    scale = Scale(full, item.capacity_bytes, item.limit_bytes if item.limit_bytes < item.capacity_bytes else 0)
    head = tag(
        "div", tag("span", text(item.numbers.strip())), tag("b", text(item.share), class_="figure"), class_="row"
    )
    return joined((head, bar_row(Bar("", parts, item.share), scale, item.numbers.strip())))


def plan_head(item: PlanHead, name: str) -> Html:
    """The name of a plan with the word for its verdict."""
    word = badge(Verdict(item.word, item.tone)) if item.word else NOTHING
    return tag("div", tag("h4", text(item.name)), word, class_="row")


def plan_summary(item: PlanSummary, name: str) -> Html:
    """A plan in a few lines."""
    return joined((plan_head(item.head, name), gauge(item.gauge, name), *(block(each, name) for each in item.lines)))


RENDER: dict[type, Callable[[Any, str], Html]] = {
    Prose: prose,
    Fitting: lambda item, name: prose(Prose(item.with_parts(len(item.parts))), name),
    Facts: facts,
    Gauge: gauge,
    PlanHead: plan_head,
    PlanSummary: plan_summary,
    Item: lambda item, name: joined((prose(item.head, name), *(block(each, name) for each in item.blocks))),
    Chart: chart,
    Table: table,
    Cards: cards,
    Remedies: remedies,
    Ledger: ledger,
    Excerpt: lambda item, name: excerpt(item),
    Excerpts: excerpts,
    Formulas: formulas,
    Comparison: comparison,
    Grid: lambda item, name: grid(item),
}
