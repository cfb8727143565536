"""How far a long command is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from memcheck.cli.terminal import is_terminal

SECONDS = 0.1
"""Between two updates of a terminal's line."""


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
            stream.write(f"\r{noun}: {done:,} of {total:,} ({done / total:.0%}){end}")
        elif done == total or done / total >= last[1] + 0.1:
            last[1] = done / total
            stream.write(f"{noun}: {done:,} of {total:,}\n")
        stream.flush()

    return show
