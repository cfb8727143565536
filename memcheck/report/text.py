"""Text for people: sizes, shares, line breaking, and user text made safe for a terminal."""

from __future__ import annotations

GIB = 2**30


def gib(count: int) -> str:
    """Bytes as GiB with two decimals, without the unit."""
    return f"{count / GIB:,.2f}"


def percent(fraction: float) -> str:
    """A share with one decimal: ``97.1%``."""
    return f"{fraction:,.1%}"


def words(name: str) -> str:
    """A component's name as people write it."""
    special = {"context_and_nccl": "context and NCCL", "kv_cache": "KV cache", "logits_and_loss": "logits and loss"}
    return special.get(name, name.replace("_", " "))


def plural(count: int, noun: str) -> str:
    """``1 plan``, ``2 plans``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    """A name or a path on one line: a line end in it is shown as what it is, and cannot pass for a line of the report."""
    return clean(text).replace("\n", "\\x0a")


def _visible(char: str) -> str:
    if char == "\t":
        return "    "
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def width(text: str) -> int:
    """Terminal cells of a text: wide East Asian characters take two, combining marks none."""
    if text.isascii():
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
        room = columns - (first if not lines else 0)
        for word in paragraph.split(" "):
            candidate = f"{line} {word}" if line else word
            if width(candidate) <= room:
                line = candidate
                continue
            if line:
                lines.append(line)
                room = columns
            while width(word) > room:
                cut = _fitting(word, room)
                lines.append(word[:cut])
                word = word[cut:]
                room = columns
            line = word
        lines.append(line)
    return lines


def _fitting(word: str, room: int) -> int:
    """How many characters of a word fit into ``room`` cells; at least one, so that breaking ends."""
    used = 0
    for index, char in enumerate(word):
        used += width(char)
        if used > room:
            return max(index, 1)
    return len(word)
