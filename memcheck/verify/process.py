"""The process that runs PyTorch: its extra, Ctrl-C, progress on stderr, quiet libraries."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO, final

from memcheck import __version__
from memcheck.edge.screen import put, put_over
from memcheck.errors import UsageError

NEEDED = ("torch", "transformers", "peft")
INSTALL = "pip install 'memcheck[verify]'"


class MissingVerifyExtraError(UsageError):
    """A library of the extra is not installed, or cannot be imported."""


def require_extra() -> None:
    """Make sure that every library of the extra can be found.

    Raises:
        MissingExtraError: with the command that installs them.
    """
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingVerifyExtraError(f"memcheck verify needs {', '.join(missing)}: {INSTALL}")
    try:
        import torch  # noqa: F401  # found is not yet usable: a wheel for another platform fails here
    except Exception as error:
        raise MissingVerifyExtraError(f"torch cannot be imported ({error}): {INSTALL}") from error


def versions() -> dict[str, str]:
    """What the observation was made with."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"memcheck": __version__, "python": platform.python_version()}
    for name in (*NEEDED, "accelerate", "torchtitan"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 - five names
            continue
    return found


@final
class Interrupts:
    """Remembers the first interrupt; a second one acts at once.

    An exception raised by a signal handler inside a weak reference's callback would be swallowed.
    """

    def __init__(self) -> None:
        self._seen = False
        self._before: object = None

    def seen(self) -> bool:
        """Whether to stop."""
        return self._seen

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = True

    def __enter__(self) -> Interrupts:
        """Take over from the default handler, in the main thread only: elsewhere signals do not arrive."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Give back the handler; an interrupt that has not been handled yet is raised now."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # what signal() gave us
            self._before = None
        if self._seen and error[0] is None:
            raise KeyboardInterrupt


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


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no log lines below errors, no network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
