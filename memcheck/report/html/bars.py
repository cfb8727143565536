"""Stacked bars as SVG. Places are percentages, so that a bar is as wide as the page and its text keeps its size."""

from __future__ import annotations

from memcheck.edge.text import between, gib, percent, words
from memcheck.report.html.escape import Html, joined, shape, tag, text
from memcheck.report.html.shell import css
from memcheck.report.story.blocks import Bar, Chart, Scale

BIG, ROW, THIN, UPRIGHT = 34, 17, 10, 180
"""Heights of the kinds of bars, in pixels."""
GAP = 1
"""Pixels of background between two stretches."""
TONES = ("good", "warn", "bad", "note")


def place(count: int, scale: Scale) -> str:
    """Bytes as a share of the axis."""
    share = f"{100 * min(1.0, count / scale.full_bytes):.2f}".rstrip("0").rstrip(".")
    return f"{share}%"


def label(key: str) -> str:
    """The name of a segment's component; empty for a segment that only has a tone."""
    return "" if key in TONES else words(key)


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


def lines(scale: Scale, height: int) -> Html:
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


def row(bar: Bar, scale: Scale, title: str, *, height: int = ROW, kind: str = "bar") -> Html:
    """One bar as SVG, with its scale and ``title``, the text for screen readers. ``height``: pixels."""
    body = (track(scale, height), stretches(bar, scale, height), lines(scale, height))
    return tag("svg", tag("title", text(title)), *body, class_=kind, height=height, role="img")


def big(chart: Chart) -> Html:
    """The bar that says it all: with the interval below it, and names on its lines."""
    (bar,), scale = chart.bars, chart.scale
    low, high = chart.interval_bytes
    parts = [track(scale, BIG), stretches(bar, scale, BIG), lines(scale, BIG + 4)]
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
