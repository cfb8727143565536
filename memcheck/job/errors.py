"""Errors of plans that cannot be estimated at all."""

from __future__ import annotations

from memcheck.errors import MemcheckError
from memcheck.record import Record


class JobProblem(Record):
    """One reason, with the key that is responsible."""

    kind: str
    """Which file rule reports it: ``model`` (MEM020) | ``gpu`` (MEM021) | ``architecture`` (MEM022) | ``config-key``
    (MEM023) | ``config`` (MEM024) | ``missing`` (MEM012) | ``images``, ``base``, ``lora``
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
