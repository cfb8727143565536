"""What is wrong with a model's ``config.json``."""

from __future__ import annotations

from memcheck.errors import MemcheckError


class ConfigFileError(MemcheckError):
    """A ``config.json`` that cannot be read. ``line`` and ``column`` (1-based) are 0 for the whole file."""

    def __init__(self, message: str, help: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message, help)
        self.line = line
        self.column = column
