"""The ledger of values that a plan does not state, and the errors of plans without an estimate."""

from __future__ import annotations

from memcheck.errors import MemcheckError
from memcheck.job.types import Assumption
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar


class JobProblem(Record):
    """One reason, with the key that is responsible."""

    kind: str
    """Which file rule reports it: ``model`` (MEM020) | ``gpu`` (MEM021) | ``architecture`` (MEM022) | ``config-key``
    (MEM023) | ``config`` (MEM024) | ``missing`` (MEM012) | ``conflict`` (MEM015) | ``images``, ``base``, ``lora``
    (MEM014)."""
    pointer: str
    message: str
    help: str = ""


class ResolutionError(MemcheckError):
    """The plan is well-formed, but names something that does not exist or misses what has no default.

    Everything that is merely wrong about a plan (a degree that does not divide, an unknown option) is left to the
    rules: resolution goes on with the nearest job that can be estimated.
    """

    exit_code = 1

    def __init__(self, problems: tuple[JobProblem, ...]) -> None:
        super().__init__("; ".join(p.message for p in problems), problems[0].help)
        self.problems = problems


if TYPE_CHECKING:
    T = TypeVar("T")

PLAN_DEFAULT = "default"


class Defaults:
    """Hands out stated values, or defaults that it writes down."""

    def __init__(self) -> None:
        self._taken: list[Assumption] = []

    def take(self, key: str, stated: T | None, default: T, why: str = PLAN_DEFAULT) -> T:
        """Return ``stated``, or ``default`` with a note under the dotted plan key that it was assumed."""
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
