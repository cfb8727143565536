"""Says on stderr where a long trace stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from memcheck.edge.streams import put, put_over

INTERVAL_S = 0.1
"""A line that changes more often cannot be read."""


class Progress:
    """One line that is written over on a terminal; elsewhere one line per step."""

    def __init__(self, stream: TextIO, *, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._terminal = terminal
        self._clock = clock
        self._rank = self._step = ""
        self._layers = 0
        self._shown = 0
        self._last = float("-inf")

    def begin(self, rank: str, layers: int) -> None:
        """Begin a new rank. ``layers``: the number of layers of its model."""
        self._rank, self._step, self._layers = rank, "", layers

    def say(self, step: str) -> None:
        """A new step."""
        self._step = step
        text = f"tracing {self._rank}: {step}"
        if self._terminal:
            self._write_over(text)
        else:
            put(self._stream, f"memcheck: {text}\n")

    def at(self, phase: str, module: str) -> None:
        """Show where in the step the run is."""
        if not self._terminal:
            return
        now = self._clock()
        if now - self._last < INTERVAL_S:
            return
        self._last = now
        layer = next((int(part) for part in module.split(".") if part.isdigit()), None)
        where = "" if layer is None else f", layer {layer + 1} of {self._layers}"
        self._write_over(f"tracing {self._rank}: {self._step}, {phase}{where}")

    def end(self) -> None:
        """Leave no trace of the line."""
        if self._terminal:
            self._write_over("")
            put_over(self._stream, "")

    def _write_over(self, text: str) -> None:
        put_over(self._stream, text.ljust(self._shown))
        self._shown = len(text)
