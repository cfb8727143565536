"""Fonts, colours and paragraph styles: those of the HTML report on light paper."""

from __future__ import annotations

from xml.sax.saxutils import escape  # nosec - escapes, parses nothing

from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle

from memcheck.accounts.estimate import CACHE
from memcheck.edge.text import clean
from memcheck.report.html.shell import BACKGROUNDS, BARS, CACHE_OPACITY, LINES, TEXT

PLAIN, BOLD, MONO = "Helvetica", "Helvetica-Bold", "Courier"
"""Fonts that every PDF reader has, so that none is embedded; they know Windows' Latin characters."""
ARROWS = {ord("→"): "->", ord("−"): "-", ord("│"): "|", ord("─"): "-", ord("…"): "..."}


def colour(name: str) -> HexColor:
    """A role of the palette, a component's or a tone's."""
    return HexColor({**BACKGROUNDS, **TEXT, **BARS, **LINES}[name].light)


def words(text: str) -> str:
    """User text that the fonts can show: what they lack becomes its code."""
    shown = clean(text).translate(ARROWS)
    return "".join(char if _known(char) else f"\\u{ord(char):04x}" for char in shown)


def _known(char: str) -> bool:
    try:
        char.encode("cp1252")
    except UnicodeEncodeError:
        return False
    return True


def markup(text: str) -> str:
    """User text, escaped as content of a paragraph: nothing in it is read as markup."""
    return escape(words(text))


def tinted(text: str, tone: str, *, bold: bool = True) -> str:
    """Text as markup in the colour of a tone."""
    inside = f"<b>{markup(text)}</b>" if bold else markup(text)
    return f'<font color="{TEXT[tone].light}">{inside}</font>'


def swatch(key: str) -> str:
    """A small square in a component's colour, to print before the component's name; empty without a key."""
    shown = f"#{paler(BARS[key].light, CACHE_OPACITY)}" if key == CACHE else BARS[key].light if key else ""
    return f'<font name="ZapfDingbats" color="{shown}" size="7">n</font>&nbsp;&nbsp;' if key else ""


def paler(colour: str, opacity: float) -> str:
    """A colour as it is seen on white paper through so much opacity: words, unlike bars, have none."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "".join(f"{round(255 + (part - 255) * opacity):02x}" for part in parts)


def _style(name: str, size: float, *, font: str = PLAIN, ink: str = "ink", **more: object) -> ParagraphStyle:
    return ParagraphStyle(
        name, fontName=font, fontSize=size, leading=size * 1.32, textColor=colour(ink), splitLongWords=1, **more
    )


BRAND = _style("brand", 8, font=BOLD, ink="soft")
TITLE = _style("title", 20, font=BOLD, spaceAfter=2)
NAME = _style("name", 15, font=BOLD)
HEAD = _style("head", 11, font=BOLD, spaceBefore=12, spaceAfter=4, keepWithNext=1)
SUBHEAD = _style("subhead", 9, font=BOLD)
LEAD = _style("lead", 11, font=BOLD, spaceBefore=4)
BODY = _style("body", 9)
SOFT = _style("soft", 8, ink="soft", spaceAfter=3)
PROSE = _style("prose", 8, ink="soft", spaceAfter=4, keepWithNext=1)
CAPTION = _style("caption", 8, ink="soft", spaceBefore=4, spaceAfter=2, keepWithNext=1)
CELL = _style("cell", 8)
STRONG = _style("strong", 8, font=BOLD)
HEADING = _style("heading", 7.5, font=BOLD, ink="soft")
NUMBER = _style("number", 8, alignment=TA_RIGHT)
STRONG_NUMBER = _style("strong-number", 8, font=BOLD, alignment=TA_RIGHT)
NUMBER_HEADING = _style("number-heading", 7.5, font=BOLD, ink="soft", alignment=TA_RIGHT)
CODE = _style("code", 7.2, font=MONO)
