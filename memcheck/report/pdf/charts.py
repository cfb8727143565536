"""Bars as flowables, in points from the lower left corner."""

from __future__ import annotations

from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable

from memcheck.accounts.estimate import CACHE
from memcheck.edge.text import between, gib, percent
from memcheck.report.html.palette import CACHE_OPACITY
from memcheck.report.pdf.style import BOLD, PLAIN, colour, words
from memcheck.report.story.blocks import Bar, Chart, Scale

GAP = 0.5
"""Points of paper between two stretches."""


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
