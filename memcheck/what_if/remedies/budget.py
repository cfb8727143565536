"""How long a search may take: by the clock of the machine, or in steps that are the same on every machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.what_if.remedies.effort import Effort


class BudgetSpentError(Exception):
    """A search, or a part of it, has taken what it may. Whoever gave it out goes on with what was found."""


class Budget:
    """Seconds from now on, or steps, of which parts are given out; None for no end."""

    def __init__(self, seconds: float | None = None, effort: Effort | None = None, steps: int = 0) -> None:
        """``effort``: counts the steps of the search, of which there may be ``steps``."""
        self.seconds = seconds
        self.effort, self._steps, self._most = effort, steps, steps
        self._until = None if seconds is None else time.monotonic() + seconds
        self.unsearched = 0
        """Plans of the spaces that were begun, and that nobody looked at."""
        self.spent = False
        """Whether anything was cut short."""

    def check(self) -> None:
        """Go on, or not.

        Raises:
            BudgetSpentError: the time is up, or the steps are made.
        """
        late = self._until is not None and time.monotonic() > self._until
        if late or (self.effort is not None and self.effort.steps > self._most):
            self.spent = True
            raise BudgetSpentError

    @contextmanager
    def part(self, share: float = 1.0, by: float = 1.0) -> Iterator[None]:
        """A share of what is left for what is done inside, which ends without an error when it is used up.

        ``by``: the share of all steps by which it ends.
        """
        before, most = self._until, self._most
        self._most = min(most, int(self._steps * by))
        if before is not None:
            now = time.monotonic()
            self._until = now + max(0.0, before - now) * share
        try:
            yield
        except BudgetSpentError:
            pass
        finally:
            self._until, self._most = before, most
