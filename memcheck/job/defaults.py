"""The ledger of values that the plan did not state."""

from __future__ import annotations

from memcheck.job.types import Assumption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

PLAN_DEFAULT = "default"


class Defaults:
    """Hands out stated values, or defaults that it writes down."""

    def __init__(self) -> None:
        self._taken: list[Assumption] = []

    def take(self, key: str, stated: T | None, default: T, why: str = PLAN_DEFAULT) -> T:
        """``stated``, or ``default`` with a note under the dotted plan key that it was assumed."""
        if stated is not None:
            return stated
        self.note(key, default, why)
        return default

    def note(self, key: str, value: object, why: str) -> None:
        """Write down a value that follows from others."""
        self._taken.append(Assumption(key, value, why))

    def taken(self) -> tuple[Assumption, ...]:
        """Every default used so far, in the order in which it was asked for."""
        return tuple(self._taken)
