"""Text for people: sizes, shares, line breaking, user text made safe for a terminal, and whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

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
