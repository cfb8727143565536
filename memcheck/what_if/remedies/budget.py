"""How long a search may take: by the clock of the machine, or in steps that are the same on every machine."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from memcheck.what_if.remedies.effort import Effort


class BudgetSpentError(Exception):
    """A search, or a part of it, has used up its budget. The caller goes on with what was found."""


class Budget:
    """Seconds from now on, or steps, of which parts are given out; None for no end."""

    def __init__(self, seconds: float | None = None, effort: Effort | None = None, steps: int = 0) -> None:
        """``effort``: counts the steps of the search, of which there may be ``steps``."""
        self.seconds = seconds
        self.effort, self.steps, self.most = effort, steps, steps
        self.until = None if seconds is None else time.monotonic() + seconds
        self.unsearched = 0
        """Plans that the search did not look at, in the spaces that it began."""
        self.spent = False
        """Whether anything was cut short."""

    def check(self) -> None:
        """Go on, or not.

        Raises:
            BudgetSpentError: the time is up, or the steps are made.
        """
        late = self.until is not None and time.monotonic() > self.until
        if late or (self.effort is not None and self.effort.steps > self.most):
            self.spent = True
            raise BudgetSpentError

    def part(self, share: float = 1.0, by: float = 1.0) -> BudgetPart:
        """A share of what is left for what is done inside, which ends without an error when it is used up.

        ``by``: the share of all steps by which it ends.
        """
        return BudgetPart(self, share, by)


class BudgetPart:
    """A part of a budget, as a context."""

    __slots__ = ("_before", "_budget", "_by", "_share")

    def __init__(self, budget: Budget, share: float, by: float) -> None:
        self._budget, self._share, self._by = budget, share, by

    def __enter__(self) -> None:
        budget = self._budget
        self._before = before, most = budget.until, budget.most
        budget.most = min(most, int(budget.steps * self._by))
        if before is not None:
            now = time.monotonic()
            budget.until = now + max(0.0, before - now) * self._share

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._budget.until, self._budget.most = self._before
        return isinstance(error, BudgetSpentError)
