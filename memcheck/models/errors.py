"""What can be wrong with a model's configuration."""

from __future__ import annotations

from memcheck.errors import MemcheckError


class ArchitectureError(MemcheckError):
    """A configuration that cannot be turned into an architecture.

    ``key`` names the offending configuration key (dotted inside a nested section); empty when none is to blame.
    """

    def __init__(self, message: str, help: str = "", key: str = "") -> None:
        super().__init__(message, help)
        self.key = key
