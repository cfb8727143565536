"""Is a YAML file a plan? Answered from its bytes, so that a folder of other YAML costs next to nothing."""

from __future__ import annotations

import re

# A key at the start of a line whose value is on that line, or nowhere: `memcheck:` over an indented block is a section
# of some other tool's file, such as a CI job of that name.
_KEY = re.compile(
    rb"""^(?:\xef\xbb\xbf)?(?:memcheck|"memcheck"|'memcheck')[ \t]*:"""
    rb"""(?:[ \t]+[^\s\#&*!|>{\[]|(?:[ \t]*(?:\#[^\n]*)?\n)+(?![ \t\n\#]|-[ ])|[ \t]*(?:\#[^\n]*)?\Z)""",
    re.MULTILINE,
)
_BRACES = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*(?:#[^\n]*|---|%[^\n]*)?\n)*(?:---)?[ \t]*\{")
_TOKEN = re.compile(
    rb"""[{}\[\]]|(?<![\w-])(?:memcheck|"memcheck"|'memcheck')[ \t]*:[ \t]*["']?(?P<version>[0-9])"""
    rb"""|"(?:[^"\\]|\\.)*"|'[^']*'|\#[^\n]*"""
)


def looks_like_plan(data: bytes) -> bool:
    """Whether some document has a top-level ``memcheck`` key. Does not parse YAML; never raises.

    A plan with a mistake behind that key still counts, so that the mistake is reported.
    """
    if b"memcheck" not in data:
        return False
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return _KEY.search(data) is not None or _in_braces(data)


def _in_braces(data: bytes) -> bool:
    """A document written as one flow mapping, such as JSON: the key must stand directly inside its braces."""
    start = _BRACES.match(data)
    if start is None:
        return False
    depth = 0
    for token in _TOKEN.finditer(data, start.end() - 1):
        first = token.group()[:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and token["version"]:
            return True
    return False
