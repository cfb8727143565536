"""The sweep as a heat map: one file that loads nothing and runs nothing, in the shell of every HTML report.

The last axis is the columns, the one before it the rows; every combination of the others has a map of its own.
"""

from __future__ import annotations

from itertools import product

from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, percent, value
from memcheck.memory.fit import ABOVE, FITS, UNCERTAIN
from memcheck.report.html.escape import attributes, code, text
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
    ("h2", "to 85%"),
    ("h3", "fits, above 85%"),
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
    maps = _maps(sweep)
    body = [
        '<p class="brand">memcheck sweep</p>',
        f"<h1>{text(sweep.plan)}</h1>",
        f'<p class="lead">{text(counts(sweep))}.</p>',
        f'<p class="soft small">{code(sweep.path)}: {_axes(sweep.axes)}</p>',
        _legend(),
        *maps,
        _fastest(sweep),
        _reasons(sweep),
    ]
    return page(f"{sweep.plan}: sweep", "\n".join(part for part in body if part), version=sweep.version, styles=_css())


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
        ".heat caption span{position:sticky;left:0;display:inline-block;max-width:min(34rem,calc(100vw - 5rem))}"
        ".heat{width:auto}.heat small{display:block;color:var(--ink)}"
        ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem;margin-top:.8rem}"
        ".legend li{padding:.15rem .5rem;border-radius:4px;font-size:.82rem}"
        f"{shades(0).replace('.heat ', ':is(.heat,.legend) ')}\n"
        f"@media screen and (prefers-color-scheme:dark){{{shades(1).replace('.heat ', ':is(.heat,.legend) ')}}}\n"
    )


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{code(each.key)} {len(each.values)}" for each in axes)


def _legend() -> str:
    items = "".join(f"<li{attributes(class_=name)}>{text(words)}</li>" for name, words in LEGEND)
    return f'<ul class="legend" aria-label="colours: device memory needed, of capacity">{items}</ul>'


def _maps(sweep: Sweep) -> list[str]:
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
            found.append(f'<section class="card">{table}</section>')
            continue
        title = ", ".join(f"{name} {value(item)}" for name, item in zip(names, values, strict=True))
        fitting = sum(point.verdict == FITS for point in points)
        opened = " open" if len(combinations) <= OPEN_MAPS else ""
        found.append(
            f'<details class="card"{opened}><summary>{text(title)} '
            f'<span class="soft small">{fitting} of {len(points)} fit</span></summary>{table}</details>'
        )
    return found


def _map(rows: Axis, columns: Axis, points: tuple[Point, ...]) -> str:
    wide = len(columns.values)
    corner = f"{rows.key} ↓ {columns.key} →" if columns.key else rows.key
    head = "".join(f'<th scope="col">{text(value(item)) if columns.key else "used"}</th>' for item in columns.values)
    lines = []
    for index, item in enumerate(rows.values):
        cells = "".join(_cell(point) for point in points[index * wide : (index + 1) * wide])
        lines.append(f'<tr><th scope="row">{text(value(item))}</th>{cells}</tr>')
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="heat map"><table class="heat">'
        "<caption><span>Device memory needed, of capacity; below it tokens per second and GPU. "
        f"{text(corner)}</span></caption>"
        f'<thead><tr><th scope="col">{text(rows.key.rpartition(".")[2])}</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(point: Point) -> str:
    if not point.estimated:
        why = "; ".join(f"{problem.code} {problem.message}" for problem in point.problems)
        return f"<td{attributes(class_='hi', title=why)}>{text(point.codes[0] if point.codes else 'illegal')}</td>"
    step = point.step
    rate = f"<small>{step.tokens_per_second_per_gpu:,.0f}</small>" if step is not None else ""
    mark = {FITS: "", UNCERTAIN: "? ", ABOVE: "! "}.get(point.verdict, "× ")
    told = f"{gib(point.device_bytes)} GiB of {gib(point.capacity_bytes)}, peak in {point.instant}"
    told = "; ".join([told, *(f"{problem.code} {problem.message}" for problem in point.problems)])
    return f"<td{attributes(class_=shade(point), title=told)}>{mark}{percent(point.utilization)}{rate}</td>"


def shade(point: Point) -> str:
    """The class of a cell."""
    used = point.utilization
    plain = {ILLEGAL: "hi", UNCERTAIN: "hu", ABOVE: "ha", HOST: "hh"}.get(point.verdict)
    if plain is not None:
        return plain
    if point.verdict == FITS:
        return "h0" if used <= 0.5 else "h1" if used <= 0.7 else "h2" if used <= 0.85 else "h3"
    return "x0" if used <= 1.2 else "x1" if used <= 2 else "x2"


def _fastest(sweep: Sweep) -> str:
    """The fastest points that fit."""
    ranked = sorted((p for p in sweep.points if p.verdict == FITS and p.step is not None), key=speed, reverse=True)
    if not ranked:
        return ""
    keys = short_keys(tuple(each.key for each in sweep.axes))
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in keys)
    lines = []
    for point in ranked[:FASTEST]:
        values = "".join(f"<td>{text(value(point.set[each.key]))}</td>" for each in sweep.axes)
        figures = f'<td class="num">{percent(point.utilization)}</td><td class="num">{speed(point):,.0f}</td>'
        lines.append(f"<tr>{values}{figures}</tr>")
    return (
        '<section class="card"><h2>Fastest that fit</h2><div class="wide" tabindex="0" role="group" '
        'aria-label="fastest points"><table><caption>By a roofline model that ranks; no measurement.</caption>'
        f'<thead><tr>{heads}<th scope="col" class="num">used</th><th scope="col" class="num">tokens/s/GPU</th></tr>'
        f"</thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _reasons(sweep: Sweep) -> str:
    found = reasons(sweep)
    if not found:
        return ""
    items = "".join(
        f"<li><strong>{text(name)}</strong> ({count:,}): {text(message)}</li>"
        for name, (count, message) in found.items()
    )
    return f'<section class="card"><h2>Why points fail</h2><ul>{items}</ul></section>'
