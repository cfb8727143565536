"""How far a long command is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memcheck.cli.terminal import is_terminal
from memcheck.edge.streams import put, put_over

PATIENCE_S = 1.0
"""A search that answers sooner shows nothing."""
SECONDS = 0.1
"""Between two updates of a terminal's line."""


@contextmanager
def counting(noun: str, things: str) -> Iterator[Callable[[int], None] | None]:
    """A function that shows how many things an open-ended search has looked at; None when nobody looks.

    The line appears after a second, is rewritten, and is gone at the end.
    """
    stream = sys.stderr
    if not is_terminal(stream):
        yield None
        return
    begun = time.monotonic()
    last, shown = [begun], [0]

    def show(done: int) -> None:
        now = time.monotonic()
        if now - begun < PATIENCE_S or now - last[0] < SECONDS:
            return
        last[0] = now
        text = f"{noun}: {done:,} {things} looked at"
        shown[0] = len(text)
        put_over(stream, text)

    try:
        yield show
    finally:
        if shown[0]:
            put_over(stream, " " * shown[0])
            put_over(stream, "")


def progress(noun: str, total: int, *, wanted: bool) -> Callable[[int], None] | None:
    """A function that shows how many of ``total`` are done; None when nobody looks.

    On a terminal one line is rewritten; elsewhere (``wanted`` alone) a line is written at every tenth.
    """
    stream = sys.stderr
    live = is_terminal(stream)
    if not (live or wanted):
        return None
    last = [0.0, 0.0]

    def show(done: int) -> None:
        if live:
            now = time.monotonic()
            if done < total and now - last[0] < SECONDS:
                return
            last[0] = now
            end = "\n" if done == total else ""
            put_over(stream, f"{noun}: {done:,} of {total:,} ({done / total:.0%}){end}")
        elif done == total or done / total >= last[1] + 0.1:
            last[1] = done / total
            put(stream, f"{noun}: {done:,} of {total:,}\n")

    return show
