"""Text for people, and the one way on which finished text reaches the place that shows it: inert, line by line.

Sizes, shares, whole numbers, line breaking, and user text made safe for a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


GIB = 2**30
NARROW = frozenset(map(chr, (*range(0x20, 0x7F), 0x2026, *range(0x2500, 0x25A0))))
"""What reports are drawn with, a cell each: ASCII, the ellipsis, lines, blocks. Unicode's table takes time to load."""


def gib(count: int) -> str:
    """Bytes as GiB with two decimals, without the unit."""
    return f"{count / GIB:,.2f}"


def between(ends: tuple[int, int]) -> str:
    """An interval of bytes in GiB, without the unit: ``between 108.5 and 121.6``.

    The ends are rounded outwards, to one decimal; below 10 GiB to two.
    """
    low, high = (round(each / GIB, 3) for each in ends)
    places = 1 if high >= 10 else 2
    scale: int = 10**places
    down, up = int(round(low * scale, 1)), -int(-round(high * scale, 1) // 1)
    return f"between {down / scale:,.{places}f} and {up / scale:,.{places}f}"


def percent(fraction: float) -> str:
    """A share with one decimal: ``97.1%``."""
    return f"{fraction:,.1%}"


def words(name: str) -> str:
    """A component's name as people write it."""
    special = {"context_and_nccl": "context and NCCL", "kv_cache": "KV cache", "logits_and_loss": "logits and loss"}
    return special.get(name, name.replace("_", " "))


def plural(count: int, noun: str) -> str:
    """``1 plan``, ``2,048 plans``."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def value(item: object) -> str:
    """A plan value as YAML would show it on one line."""
    if item is None:
        return "unset"
    if item is True or item is False:
        return "true" if item else "false"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{key}: {value(inner)}" for key, inner in item.items()) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(inner) for inner in item) + "]"
    return str(item)


def clean(text: str) -> str:
    """User text without characters that could drive the terminal (escapes, carriage returns, direction marks)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _visible(char) for char in text)


def one_line(text: str) -> str:
    """A name or a path on one line: a line end in it becomes visible, and what follows no line of the report."""
    return clean(text).replace("\n", "\\x0a")


def _visible(char: str) -> str:
    if char == "\t":
        return "    "
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def width(text: str) -> int:
    """Terminal cells of a text: wide East Asian characters take two, combining marks none."""
    if text.isascii() or NARROW.issuperset(text):
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def wrap(text: str, columns: int, first: int = 0) -> list[str]:
    """Break text at spaces so that no line is wider than ``columns``; the first line has ``first`` columns less.

    A word that is longer than a line is broken too: nothing may run over the edge.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        used = 0
        room = columns - (first if not lines else 0)
        for word in paragraph.split(" "):
            cells = width(word)
            if used + bool(line) + cells <= room:
                used += bool(line) + cells
                line = f"{line} {word}" if line else word
                continue
            if line:
                lines.append(line)
                room = columns
            *full, line = broken(word, room, columns) if cells > room else [word]
            used = width(line) if full else cells
            if full:
                lines += full
                room = columns
        lines.append(line)
    return lines


def broken(word: str, first: int, room: int) -> list[str]:
    """A word in pieces: the first of at most ``first`` cells, the others of ``room``; each has a character at least."""
    pieces: list[str] = []
    start = 0
    for at in breaks(word, first, room):
        pieces.append(word[start:at])
        start = at
    return [*pieces, word[start:]]


def breaks(text: str, first: int, room: int) -> Iterator[int]:
    """Where a text has to be broken so that no piece is wider than its room. Looks at every character once."""
    start = used = 0
    left = first
    for index, char in enumerate(text):
        cells = 1 if char.isascii() else width(char)
        if used + cells > left and index > start:
            yield index
            start, used, left = index, 0, room
        used += cells


def beginning(text: str, room: int) -> str:
    """The longest start of ``text`` that fits into ``room`` terminal cells; empty where no character fits."""
    if room < 1 or (text and width(text[0]) > room):
        return ""
    return text[: next(breaks(text, room, room), len(text))]


MOST_DIGITS = 18
"""More make no size, and Python refuses to read some thousands of them."""


def whole_number(text: str) -> int | None:
    """The number that at most 18 ASCII digits are; None for any other text.

    ``str.isdigit`` is true of ``²`` as well, which is no number.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


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


_ESCAPE = "(\x1b\\[[0-9;]*m|\x1b]8;;[^\x1b\n]*\x1b\\\\)"
"""The two kinds of escapes that memcheck makes: colours and hyperlinks.

Patterns are compiled where they are needed: few reports have anything to see to."""
_FIRST = "(?m)^((?:[^\\S\n]|\x1b\\[[0-9;]*m|\x1b]8;;[^\x1b\n]*\x1b\\\\)*):(?=:(?!: ))"
"""The colon that makes a line a command. ``::: `` is memcheck's own arrow, and the name of no command."""
_BREAK = "\u200b"
"""What Markdown's text has where a link would begin: a space of no width, which moves nothing and ends no line."""
_ANYWHERE = r"#(?=#[A-Za-z]*\[)"


def inert(text: str, *, commands: bool = False) -> str:
    """Text whose control characters, direction marks and commands can be seen and do nothing.

    Escapes that :class:`~memcheck.edge.screen.Screen` has made pass; all others become visible. With ``commands``
    the text has workflow commands of memcheck's own, and its author has made the rest of it inert.
    """
    if "\x1b" not in text:
        text = _cleaned(text)
    else:
        import re

        text = "".join(part if part in MADE else _cleaned(part) for part in re.split(_ESCAPE, text))
    return text if commands else without_commands(text)


def without_commands(text: str) -> str:
    """Text in which no runner finds a command: the character that makes one is written as its code."""
    if "::" in text:
        import re

        text = re.sub(_FIRST, r"\1\\x3a", text)
    if "##" in text:
        import re

        text = re.sub(_ANYWHERE, r"\\x23", text)
    return text


def _cleaned(text: str) -> str:
    if text.replace("\n", "").isprintable():
        return text
    return _BREAK.join(map(clean, text.split(_BREAK)))


RUNNERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Variables of CI runners that read commands from what a step prints."""


def put(stream: TextIO, text: str) -> None:
    """Write text for people, with nothing in it that the terminal or a CI runner would obey.

    What stderr cannot take is lost: the exit code has the verdict. Raises BrokenPipeError when the reader has closed
    the pipe.
    """
    _write(stream, inert(text))


def put_over(stream: TextIO, text: str) -> None:
    """Write over the terminal's current line, from its start."""
    _write(stream, "\r" + inert(text))


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:
        silence()


def silence() -> None:
    """Send the unread rest of stdout and stderr to the null device: the interpreter's last flush must not fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - two streams
            os.dup2(devnull, stream.fileno())
    os.close(devnull)


def open_missing() -> None:
    """Put a stream where the process was started without one: reading or writing it is an error, not a defect.

    Errors alone vanish in silence. A closed descriptor is taken, too: no file that is opened later may get its number.
    """
    for number, (name, flags) in enumerate(
        (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)),
    ):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, flags)  # the lowest that is free
        setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False, encoding="utf-8"))  # noqa: SIM115


def is_log(stream: TextIO) -> bool:
    """Whether people or a CI runner read the stream; a file or another program takes every byte as it is."""
    try:
        if stream.isatty():
            return True
        if not any(os.environ.get(name) for name in RUNNERS):
            return False
        from stat import S_ISREG

        return not S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return False


def document(text: str) -> str:
    """A document (a patch, a config) as stdout may have it: as it is for programs, inert where it would be a log."""
    return inert(text) if is_log(sys.stdout) else text
