"""Stacked bars as SVG. Places are percentages, so that a bar is as wide as the page and its text keeps its size."""

from __future__ import annotations

from memcheck.edge.text import gib, percent, words
from memcheck.report.html.escape import text
from memcheck.report.html.palette import css
from memcheck.report.story.blocks import Bar, Chart, Scale

BIG, ROW, THIN, UPRIGHT = 34, 17, 10, 180
"""Heights in pixels."""
GAP = 1
"""Pixels of background between two stretches."""
TONES = ("good", "warn", "bad", "note")


def place(count: int, scale: Scale) -> str:
    """Bytes as a share of the axis."""
    share = f"{100 * min(1.0, count / scale.full_bytes):.2f}".rstrip("0").rstrip(".")
    return f"{share}%"


def label(key: str) -> str:
    """A stretch's name."""
    return "" if key in TONES else words(key)


def stretches(bar: Bar, scale: Scale, height: int) -> str:
    """Rectangles from left to right, each with its name and size for whoever points at it."""
    found, start = [], 0
    for segment in bar.segments:
        name = f"{label(segment.key)} {gib(segment.bytes)} GiB".strip()
        x, width = place(start, scale), place(segment.bytes, scale)
        if width != "0%":
            found.append(
                f'<rect class="c-{css(segment.key)}" x="{x}" width="{width}" height="{height}">'
                f"<title>{text(name)}</title></rect>"
            )
            if start:
                found.append(f'<rect class="gap" x="{x}" width="{GAP}" height="{height}"/>')
        start += segment.bytes
    return "".join(found)


def track(scale: Scale, height: int) -> str:
    """What there is: from nothing to the capacity."""
    end = place(min(scale.capacity_bytes, scale.full_bytes), scale)
    return f'<rect class="track" width="{end}" height="{height}"/>'


def lines(scale: Scale, height: int) -> str:
    """The plan's limit, thin; the capacity, thick. Both stand inside the picture at its right end."""
    found = ""
    if 0 < scale.limit_bytes < scale.full_bytes:
        x = place(scale.limit_bytes, scale)
        found += f'<line class="limit" x1="{x}" x2="{x}" y2="{height}"/>'
    if 0 < scale.capacity_bytes < scale.full_bytes:
        x = place(scale.capacity_bytes, scale)
        found += f'<line class="line" x1="{x}" x2="{x}" y2="{height}"/>'
    elif scale.capacity_bytes == scale.full_bytes:
        found += f'<svg x="100%" overflow="visible"><line class="line" x1="-1" x2="-1" y2="{height}"/></svg>'
    return found


def row(bar: Bar, scale: Scale, title: str, *, height: int = ROW, kind: str = "bar") -> str:
    """One bar."""
    body = track(scale, height) + stretches(bar, scale, height) + lines(scale, height)
    return f'<svg class="{kind}" height="{height}" role="img"><title>{text(title)}</title>{body}</svg>'


def big(chart: Chart) -> str:
    """The bar that says it all: with the interval below it, and names on its lines."""
    (bar,), scale = chart.bars, chart.scale
    low, high = chart.interval_bytes
    parts = [track(scale, BIG), stretches(bar, scale, BIG), lines(scale, BIG + 4)]
    if scale.limit_bytes:
        parts.append(said(scale.limit_bytes, scale, -5, f"limit {percent(scale.limit_bytes / scale.capacity_bytes)}"))
    y = BIG + 9
    if high:
        a, b = place(low, scale), place(high, scale)
        parts.append(f'<line class="span" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>')
        parts += [f'<line class="span" x1="{x}" x2="{x}" y1="{y - 4}" y2="{y + 4}"/>' for x in (a, b)]
        parts.append(said((low + high) // 2, scale, y + 17, f"95% interval {gib(low)} to {gib(high)}"))
        y += 18
    named = f"{chart.capacity_name} {gib(scale.capacity_bytes)} GiB"
    parts.append(said(scale.capacity_bytes, scale, y + 17, named, "strong"))
    height = y + 22
    title = f"<title>{text(chart.title)}</title>"
    return f'<svg class="bar big" height="{height}" role="img">{title}{"".join(parts)}</svg>'


def said(count: int, scale: Scale, y: int, what: str, kind: str = "") -> str:
    """A name at a place of the axis, turned inwards at both ends."""
    share = count / scale.full_bytes
    anchor = "start" if share < 0.3 else "end" if share > 0.7 else "middle"
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{place(count, scale)}" y="{y}" text-anchor="{anchor}">{text(what)}</text>'


def upright(chart: Chart) -> str:
    """Bars side by side with their figures above and their names below; one line of capacity runs through all."""
    scale = chart.scale
    items = [f"<li><b>{text(b.figure)}</b>{column(b, scale)}<span>{text(b.label)}</span></li>" for b in chart.bars]
    return f'<ol class="moments">{"".join(items)}</ol>'


def column(bar: Bar, scale: Scale) -> str:
    """One bar that stands."""
    found, top = [], 0
    for segment in bar.segments:
        top += segment.bytes
        height = place(segment.bytes, scale)
        if height == "0%":
            continue
        name = f"{label(segment.key)} {gib(segment.bytes)} GiB"
        y = place(scale.full_bytes - top, scale)
        found.append(
            f'<rect class="c-{css(segment.key)}" x="12%" y="{y}" width="76%" height="{height}">'
            f"<title>{text(name)}</title></rect>"
        )
        found.append(f'<rect class="gap" x="12%" y="{y}" width="76%" height="{GAP}"/>')
    if 0 < scale.capacity_bytes < scale.full_bytes:
        y = place(scale.full_bytes - scale.capacity_bytes, scale)
        found.append(f'<line class="line" y1="{y}" x2="100%" y2="{y}"/>')
    elif scale.capacity_bytes == scale.full_bytes:
        found.append('<line class="line" y1="1" x2="100%" y2="1"/>')
    title = f"<title>{text(f'{bar.label}: {bar.figure} GiB')}</title>"
    return f'<svg class="column" height="{UPRIGHT}" role="img">{title}{"".join(found)}</svg>'
