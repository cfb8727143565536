"""What the place that shows a report can do: its width, its colours, its characters."""

from __future__ import annotations

from memcheck.record import Record

NARROWEST = 60
WIDEST = 120
"""Text is not spread further: long lines are hard to read, and bars say no more for being longer."""

# Only those of the sixteen colours that themes make legible on a dark and on a light background alike. Bold makes many
# terminals take the bright variant: bright red and magenta can be read on white, bright yellow, green and cyan cannot.
STYLES = {
    "error": "1;31",
    "warning": "1;35",
    "info": "0;36",
    "good": "32",
    "gutter": "36",
    "strong": "1",
    "dim": "2",
    "bad-bar": "31",
    "warning-bar": "35",
    "good-bar": "32",
    "bar": "36",
}

UNICODE_GLYPHS = {"full": "█", "track": "░", "tail": "▒", "limit": "│", "rule": "─", "sliver": "▏", "ellipsis": "…"}
ASCII_GLYPHS = {"full": "#", "track": ".", "tail": ":", "limit": "|", "rule": "-", "sliver": "|", "ellipsis": "..."}


MADE: set[str] = set()
"""Every escape that this process has made: what leaves with another one in it did not come from memcheck."""


def _made(escape: str) -> str:
    MADE.add(escape)
    return escape


class Screen(Record):
    """What an output can show: its width, colours, Unicode, links."""

    width: int = 100
    color: bool = False
    unicode: bool = True
    quiet: bool = False
    """Show findings only: nothing about what is in order."""
    verbose: bool = False
    """Show all that is known about a finding, not one screen of it."""
    links: bool = False
    """Text may carry the address that a click on it opens (OSC 8)."""

    @property
    def columns(self) -> int:
        """The width that text is laid out for."""
        return max(NARROWEST, min(self.width, WIDEST))

    def paint(self, text: str, style: str) -> str:
        """The text in one of :data:`STYLES`; unchanged without colour, so that lengths can be taken before."""
        if not self.color or not text or not style:
            return text
        return _made(f"\x1b[{STYLES[style]}m") + text + _made("\x1b[0m")

    def link(self, text: str, address: str) -> str:
        """The text as a hyperlink; unchanged where there are none. Like paint: takes no columns of its own."""
        if not (self.links and address):
            return text
        return _made(f"\x1b]8;;{address}\x1b\\") + text + _made("\x1b]8;;\x1b\\")

    def glyph(self, name: str) -> str:
        """A drawing character that this screen can show."""
        return (UNICODE_GLYPHS if self.unicode else ASCII_GLYPHS)[name]
