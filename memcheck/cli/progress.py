"""How far a command is that takes long, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memcheck.cli.write import is_terminal
from memcheck.edge.screen import put, put_over

QUIET_S = 1.0
"""A search that answers sooner shows nothing."""
SECONDS = 0.1
"""Between two updates of a terminal's line."""
LOG_S = 5.0
"""Between two lines of a log, where there is no terminal."""


@contextmanager
def counting(noun: str, things: str, of_s: float) -> Iterator[Callable[[int], None]]:
    """A function that shows how many things an open-ended search has looked at; ``of_s``: when it ends at the latest.

    On a terminal a line appears after a second, is rewritten, and is gone at the end; in a log one is written every few
    seconds.
    """
    stream = sys.stderr
    if not is_terminal(stream):
        yield _logging(noun, things, of_s)
        return
    begun = time.monotonic()
    last, shown = [begun], [0]

    def show(done: int) -> None:
        now = time.monotonic()
        if now - begun < QUIET_S or now - last[0] < SECONDS:
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


def _logging(noun: str, things: str, of_s: float) -> Callable[[int], None]:
    begun = time.monotonic()
    next_s = [LOG_S]

    def tell(done: int) -> None:
        passed = time.monotonic() - begun
        if passed >= next_s[0]:
            next_s[0] = passed + LOG_S
            put(sys.stderr, f"{noun}: {done:,} {things} looked at in {passed:.0f} of {of_s:g} s\n")

    return tell


def progress(noun: str, total: int, *, wanted: bool) -> Callable[[int], None] | None:
    """A function that shows how many of ``total`` are done; None unless stderr is a terminal or ``wanted``.

    On a terminal one line is rewritten and gone at the end; elsewhere (``wanted`` alone) one is written at every tenth.
    """
    stream = sys.stderr
    live = is_terminal(stream)
    if not (live or wanted):
        return None
    last = [0.0, 0.0]
    shown = [0]

    def show(done: int) -> None:
        if live and done < total:
            now = time.monotonic()
            if now - last[0] < SECONDS:
                return
            last[0] = now
            text = f"{noun}: {done:,} of {total:,} ({done / total:.0%})"
            shown[0] = len(text)
            put_over(stream, text)
        elif live:
            if shown[0]:
                put_over(stream, " " * shown[0])
                put_over(stream, "")
        elif done == total or done / total >= last[1] + 0.1:
            last[1] = done / total
            put(stream, f"{noun}: {done:,} of {total:,}\n")

    return show
