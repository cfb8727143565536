"""Python's collector of circles, out of the way of thousands of estimates."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector: estimates make records by the million, and none in a circle.

    What they made is old when the collector comes back, so that it does not begin by looking through all of it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():  # otherwise somebody else has objects frozen, which are to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
