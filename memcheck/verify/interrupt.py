"""Ctrl-C while PyTorch runs: noticed between operators, where Python can still unwind."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import final


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
