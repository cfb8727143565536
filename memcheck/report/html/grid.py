"""Heat maps on a page of their own: one file that loads nothing and runs nothing, in the shell of every HTML report."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.report.html.shell import Html, breakable, code, joined, page, tag, text
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Facts, Grid, GridCell, Section, Table

SHADES = {
    "h0": ("#eaf6ee", "#13261a"),
    "h1": ("#cfeeda", "#173a24"),
    "h2": ("#aee0c0", "#1b4c2e"),
    "h3": ("#8fd3a8", "#1f5f38"),
    "hu": ("#ffe3a6", "#5c4200"),
    "ha": ("#ffd0a1", "#633400"),
    "hh": ("#e6d0f2", "#452a56"),
    "x0": ("#ffd2cd", "#561f1d"),
    "x1": ("#f9aea6", "#6f2320"),
    "x2": ("#ee8f86", "#8a2a26"),
    "hi": ("#e3e7ec", "#2b313b"),
}
"""Cells on light and on dark screens; the words on them keep the page's ink."""
LEGEND = (
    ("h0", "to 50%"),
    ("h1", "to 70%"),
    ("h2", "to 90%"),
    ("h3", "fits, above 90%"),
    ("hu", "? uncertain"),
    ("ha", "! above the limit"),
    ("x0", "× to 120%"),
    ("x1", "× to 200%"),
    ("x2", "× above"),
    ("hh", "× host memory too small"),
    ("hi", "refused by a rule"),
)
CLASSES = {
    "fits-50": "h0",
    "fits-70": "h1",
    "fits-90": "h2",
    "fits-100": "h3",
    "uncertain": "hu",
    "above-limit": "ha",
    "host-too-small": "hh",
    "too-large-120": "x0",
    "too-large-200": "x1",
    "too-large": "x2",
    "refused": "hi",
}
"""The class of a cell, by the tone of the point."""


def page_of(
    name: str,
    path: str,
    lead: str,
    axes: Sequence[tuple[str, int]],
    grids: Sequence[Grid],
    sections: Sequence[Section],
    *,
    version: str,
) -> str:
    """A complete document. ``axes``: each key with the number of its values."""
    shown = joined((joined((code(key), text(str(count))), " ") for key, count in axes), ", ")
    body = [
        tag("p", text("memcheck sweep"), class_="brand"),
        tag("h1", text(name)),
        tag("p", text(lead), class_="lead"),
        tag("p", code(path), text(": "), shown, class_="soft small"),
        _legend(),
        *map(grid, grids),
        *map(grid_section, sections),
    ]
    return page(f"{name}: sweep", joined(body, "\n"), version=version, styles=_css())


def _css() -> str:
    """The shades, light and dark, and the map's table."""

    def shades(place: int) -> str:
        return "".join(f".heat .{name}{{background:{pair[place]}}}" for name, pair in SHADES.items())

    return (
        ".heat td{text-align:center;white-space:nowrap;padding:.3rem .4rem;min-width:4.2rem;"
        "border:1px solid var(--card);"
        "print-color-adjust:exact;-webkit-print-color-adjust:exact}"
        ".heat th{padding:.3rem .6rem .3rem 0;white-space:nowrap}.heat thead th{text-align:center}"
        ".heat th:first-child{position:sticky;left:0;background:var(--card)}"
        ".heat{width:auto}.heat small{display:block;color:var(--ink)}"
        "@media (max-width:40rem){.ranked{font-size:.8rem}.ranked thead th{font-size:.68rem}"
        ".ranked th,.ranked td{padding-right:.35rem}}"
        ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem;margin-top:.8rem}"
        ".legend li{padding:.15rem .5rem;border-radius:4px;font-size:.82rem}"
        f"{shades(0).replace('.heat ', ':is(.heat,.legend) ')}\n"
        f"@media screen and (prefers-color-scheme:dark){{{shades(1).replace('.heat ', ':is(.heat,.legend) ')}}}\n"
    )


def _legend() -> Html:
    items = (tag("li", text(words), class_=name) for name, words in LEGEND)
    return tag("ul", *items, class_="legend", aria_label="colours: device memory needed, of capacity")


def grid(item: Grid) -> Html:
    """One heat map in a card; one of several can be folded."""
    heads = (tag("th", text(head), scope="col") for head in (item.row_key, *item.columns))
    rows = (
        tag("tr", tag("th", text(name), scope="row"), *map(grid_cell, cells))
        for name, cells in zip(item.rows, item.cells, strict=True)
    )
    table = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="heat",
        aria_label=item.caption,
    )
    scrolled = tag("div", table, class_="wide", tabindex=0, role="group", aria_label="heat map")
    body = joined((tag("p", text(item.caption), class_="soft small"), scrolled))
    if not item.title:
        return tag("section", body, class_="card")
    share = tag("span", text(item.summary), class_="soft small")
    return tag("details", tag("summary", text(f"{item.title} "), share), body, class_="card", open=item.opened)


def grid_cell(item: GridCell) -> Html:
    """One point: how full, and how fast."""
    rate = [tag("small", text(item.rate))] if item.rate else []
    return tag("td", text(item.figure), *rate, class_=CLASSES[item.tone], title=item.detail)


def grid_section(item: Section) -> Html:
    """A card with a paragraph, a table or a list."""
    return tag("section", tag("h2", text(item.title)), *map(grid_block, item.blocks), class_="card")


def grid_block(item: object) -> Html:
    """A paragraph, a ranked table that can be scrolled, or a list of facts."""
    if isinstance(item, Prose):
        return tag("p", text(item.text), class_="soft small")
    if isinstance(item, Facts):
        rows = (tag("li", tag("strong", text(row.label)), text(f": {row.text}")) for row in item.rows)
        return tag("ul", *rows)
    if isinstance(item, Table):
        return ranked(item)
    raise TypeError(f"no card shows a {type(item).__name__}")


def ranked(item: Table) -> Html:
    """A table whose heads break, so that a phone shows it."""

    def kind(index: int) -> str | None:
        return "num" if index in item.right else None

    heads = (tag("th", breakable(head), scope="col", class_=kind(index)) for index, head in enumerate(item.heads))
    rows = (tag("tr", *(tag("td", text(told), class_=kind(i)) for i, told in enumerate(row))) for row in item.rows)
    table = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="ranked",
        aria_label=item.caption,
    )
    return tag("div", table, class_="wide", tabindex=0, role="group", aria_label=item.caption)
