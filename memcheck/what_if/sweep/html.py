"""The sweep as a heat map: one file that loads nothing and runs nothing, in the shell of every HTML report.

The last axis is the columns, the one before it the rows; every combination of the others has a map of its own.
"""

from __future__ import annotations

from itertools import product

from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, percent, value
from memcheck.memory.fit import ABOVE, FITS, UNCERTAIN
from memcheck.report.html.escape import NOTHING, Html, breakable, code, joined, tag, text
from memcheck.report.html.shell import page
from memcheck.what_if.points.types import HOST, ILLEGAL, Point
from memcheck.what_if.sweep.full import counts, reasons, short_keys, speed
from memcheck.what_if.sweep.grid import Axis
from memcheck.what_if.sweep.types import Sweep

FASTEST = 10
OPEN_MAPS = 12
"""More maps than this start closed."""

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


def render(sweep: Sweep, screen: Screen | None = None) -> str:
    """A complete document; the screen plays no part."""
    body = [
        tag("p", text("memcheck sweep"), class_="brand"),
        tag("h1", text(sweep.plan)),
        tag("p", text(f"{counts(sweep)}."), class_="lead"),
        tag("p", code(sweep.path), text(": "), _axes(sweep.axes), class_="soft small"),
        _legend(),
        *_maps(sweep),
        _fastest(sweep),
        _reasons(sweep),
    ]
    return page(f"{sweep.plan}: sweep", joined(filter(None, body), "\n"), version=sweep.version, styles=_css())


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


def _axes(axes: tuple[Axis, ...]) -> Html:
    return joined((joined((code(each.key), text(str(len(each.values)))), " ") for each in axes), ", ")


def _legend() -> Html:
    items = (tag("li", text(words), class_=name) for name, words in LEGEND)
    return tag("ul", *items, class_="legend", aria_label="colours: device memory needed, of capacity")


def _maps(sweep: Sweep) -> list[Html]:
    """One table per combination of the outer axes."""
    axes = sweep.axes
    columns = axes[-1] if len(axes) > 1 else Axis("", ("",))
    rows = axes[-2] if len(axes) > 1 else axes[0]
    outer = axes[:-2]
    names = short_keys(tuple(each.key for each in outer))
    size = len(rows.values) * len(columns.values)
    combinations = list(product(*(each.values for each in outer)))
    found = []
    for index, values in enumerate(combinations):
        points = sweep.points[index * size : (index + 1) * size]
        table = _map(rows, columns, points)
        if not outer:
            found.append(tag("section", table, class_="card"))
            continue
        title = ", ".join(f"{name} {value(item)}" for name, item in zip(names, values, strict=True))
        fitting = sum(point.verdict == FITS for point in points)
        share = tag("span", text(f"{fitting} of {len(points)} fit"), class_="soft small")
        opened = len(combinations) <= OPEN_MAPS
        found.append(tag("details", tag("summary", text(f"{title} "), share), table, class_="card", open=opened))
    return found


def _map(rows: Axis, columns: Axis, points: tuple[Point, ...]) -> Html:
    wide = len(columns.values)
    corner = f"{rows.key} ↓ {columns.key} →" if columns.key else rows.key
    heads = [rows.key.rpartition(".")[2], *(value(item) if columns.key else "used" for item in columns.values)]
    lines = []
    for index, item in enumerate(rows.values):
        cells = (_cell(point) for point in points[index * wide : (index + 1) * wide])
        lines.append(tag("tr", tag("th", text(value(item)), scope="row"), *cells))
    told = f"Device memory needed, of capacity; below it tokens per second and GPU. {corner}"
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", text(head), scope="col") for head in heads))),
        tag("tbody", *lines),
        class_="heat",
        aria_label=told,
    )
    scrolled = tag("div", table, class_="wide", tabindex=0, role="group", aria_label="heat map")
    return joined((tag("p", text(told), class_="soft small"), scrolled))


def _cell(point: Point) -> Html:
    problems = [f"{problem.code} {problem.message}" for problem in point.problems]
    if not point.estimated:
        return tag("td", text(point.codes[0] if point.codes else "illegal"), class_="hi", title="; ".join(problems))
    step = point.step
    rate = [tag("small", text(f"{step.tokens_per_second_per_gpu:,.0f}"))] if step is not None else []
    mark = {FITS: "", UNCERTAIN: "? ", ABOVE: "! "}.get(point.verdict, "× ")
    told = f"{gib(point.needed_bytes)} GiB of {gib(point.capacity_bytes)}, peak in {point.instant}"
    used = text(f"{mark}{percent(point.utilization)}")
    return tag("td", used, *rate, class_=shade(point), title="; ".join([told, *problems]))


def shade(point: Point) -> str:
    """The class of a cell."""
    used = point.utilization
    plain = {ILLEGAL: "hi", UNCERTAIN: "hu", ABOVE: "ha", HOST: "hh"}.get(point.verdict)
    if plain is not None:
        return plain
    if point.verdict == FITS:
        return "h0" if used <= 0.5 else "h1" if used <= 0.7 else "h2" if used <= 0.9 else "h3"
    return "x0" if used <= 1.2 else "x1" if used <= 2 else "x2"


def _fastest(sweep: Sweep) -> Html:
    """The fastest points that fit."""
    ranked = sorted((p for p in sweep.points if p.verdict == FITS and p.step is not None), key=speed, reverse=True)
    if not ranked:
        return NOTHING
    heads = [tag("th", breakable(name), scope="col") for name in short_keys(tuple(each.key for each in sweep.axes))]
    heads += [tag("th", breakable(name), scope="col", class_="num") for name in ("used", "tokens/s/GPU")]
    lines = []
    for point in ranked[:FASTEST]:
        values = (tag("td", text(value(point.set[each.key]))) for each in sweep.axes)
        figures = (percent(point.utilization), f"{speed(point):,.0f}")
        lines.append(tag("tr", *values, *(tag("td", text(each), class_="num") for each in figures)))
    table = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *lines),
        class_="ranked",
        aria_label="the fastest points that fit",
    )
    wide = tag("div", table, class_="wide", tabindex=0, role="group", aria_label="fastest points")
    told = tag("p", text("By a roofline model that ranks; no measurement."), class_="soft small")
    return tag("section", tag("h2", text("Fastest that fit")), told, wide, class_="card")


def _reasons(sweep: Sweep) -> Html:
    found = reasons(sweep)
    if not found:
        return NOTHING
    items = (
        tag("li", tag("strong", text(name)), text(f" ({count:,}): {message}"))
        for name, (count, message) in found.items()
    )
    return tag("section", tag("h2", text("Why points fail")), tag("ul", *items), class_="card")
