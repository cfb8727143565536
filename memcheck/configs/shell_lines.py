"""Lines of a shell script that hold several: an ``if`` on one line, and ``[ ... ] && NAME=...``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_IF = re.compile(r"\s*if\s[^;]*;\s*then\b")
_PARTS = re.compile(r";\s*(?=(?:then|elif|else|fi)\b)|(?<=\bthen\s)|(?<=\belse\s)")
_HEAD = re.compile(r"\s*(?:if|elif)\s")
_TESTED = re.compile(r"(\s*)(\[\[\s[^\[\]]+\s\]\]|\[\s[^\[\]]+\s\])\s*(&&|\|\|)\s*(?=[A-Za-z_]\w*(?:\[\w+\])?\+?=)")
_OTHERWISE = re.compile(r"\s*\|\|\s*(?=[A-Za-z_]\w*\+?=)")
LONGEST = 400
"""Characters of a line that is taken apart; one that is longer is left whole."""
_CLOSED = re.compile(r"\bfi\b\s*;?\s*(?=\S)")


def single(line: str) -> Iterator[str]:
    """The lines that a line stands for, in order; each has its words in the columns where they stand."""
    if len(line) > LONGEST:
        yield line
        return
    tested = _TESTED.match(line)
    if tested is not None:
        yield from _tested(line, tested)
        return
    opened = _IF.match(line)
    if opened is None or not line[opened.end() :].strip():
        yield line
        return
    closed = _CLOSED.search(line, opened.end())
    end = len(line) if closed is None else closed.end()
    yield from _parts(line[:end].rstrip(" \t;") if closed is not None else line)
    if closed is not None:
        yield from single(" " * end + line[end:])


def _parts(line: str) -> Iterator[str]:
    """``if A; then B; else C; fi``: a head, what it runs, and so on."""
    at = 0
    for cut in [*_PARTS.finditer(line), None]:
        end = len(line) if cut is None else cut.start()
        part = line[at:end]
        if part.strip() not in ("", "then"):
            yield " " * at + part + ("; then" if _HEAD.match(part) else "")
        at = len(line) if cut is None else cut.end()


def _tested(line: str, found: re.Match[str]) -> Iterator[str]:
    """``[ A ] && B``, ``[ A ] || B``, ``[ A ] && B || C``."""
    other = _OTHERWISE.search(line, found.end()) if found[3] == "&&" else None
    end = len(line) if other is None else other.start()
    yield f"{found[1]}if {found[2]}; then"
    if found[3] == "||":
        yield "else"
    yield " " * found.end() + line[found.end() : end]
    if other is not None:
        yield "else"
        yield " " * other.end() + line[other.end() :]
    yield "fi"
