"""How long a search may take, by the clock of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class BudgetSpentError(Exception):
    """The time of a search, or of a part of it, is up. Whoever gave it out goes on with what was found."""


class Budget:
    """Seconds from now on, of which parts are given out; None for no end."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self.unsearched = 0
        """Plans of the spaces that were begun, and that nobody looked at."""
        self.spent = False
        """Whether anything was cut short."""

    def check(self) -> None:
        """Go on, or not.

        Raises:
            BudgetSpentError: the time is up.
        """
        if self._until is not None and time.monotonic() > self._until:
            self.spent = True
            raise BudgetSpentError

    @contextmanager
    def part(self, share: float = 1.0) -> Iterator[None]:
        """A share of what is left for what is done inside, which ends without an error when it is used up."""
        before = self._until
        if before is not None:
            now = time.monotonic()
            self._until = now + max(0.0, before - now) * share
        try:
            yield
        except BudgetSpentError:
            pass
        finally:
            self._until = before
