"""What a command says on stderr, in addition to its answer."""

from __future__ import annotations

import os
import sys

from memcheck.cli.terminal import is_terminal, width_of
from memcheck.edge.screen import put
from memcheck.edge.text import clean, wrap

HANGS = 2
"""Columns that what goes on from the line before is moved by."""


def tell(text: str) -> None:
    """Write a message: on a terminal broken between words, elsewhere each line whole, so that ``grep`` finds it."""
    stream = sys.stderr
    put(stream, filled(text, width_of(stream, os.environ)) if is_terminal(stream) else text)


def filled(text: str, columns: int) -> str:
    """The text in lines of at most ``columns`` cells; the rest of a broken line is indented."""
    lines: list[str] = []
    for line in clean(text).split("\n"):
        start = line.lstrip(" ")
        lead = " " * (len(line) - len(start))
        first, *rest = wrap(start, max(columns - len(lead) - HANGS, 1), -HANGS)
        lines += [lead + first, *(lead + " " * HANGS + part for part in rest)]
    return "\n".join(lines)
