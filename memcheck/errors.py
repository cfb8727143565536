"""Errors a user can cause, each with the exit code it leads to and the remedy to try."""

from __future__ import annotations


class MemcheckError(Exception):
    """Base of everything memcheck raises on purpose.

    ``message`` says what is wrong with every number involved; ``help`` says what to do about it.
    """

    exit_code = 2

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(MemcheckError):
    """A wrong command line: unknown option value, nothing to check, unreadable path."""


class ConfigurationError(MemcheckError):
    """A configuration file that cannot be used."""


class UnsupportedError(MemcheckError):
    """The plan is valid, but memcheck has no memory model for what it asks.

    ``pointer`` names the responsible key as a JSON pointer into the plan.
    """

    exit_code = 1

    def __init__(self, message: str, help: str = "", pointer: str = "") -> None:
        super().__init__(message, help)
        self.pointer = pointer


DEFECT = 3
