"""Errors a user can cause, each with the exit code it leads to and the remedy to try: often a known word close by."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


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

_LONGEST = 200
"""Characters of a word that is compared; comparing takes time that grows with the square of them, and no name has
more."""


def closest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Known words that are like a word, best first, as difflib's ratio of equal characters (0 to 1) has it.

    Nothing is like a word of more than 200 characters.
    """
    if len(word) > _LONGEST:
        return []
    return list(_closest(word, tuple(each for each in known if len(each) <= _LONGEST), most, cutoff))


@lru_cache(maxsize=16_384)
def _closest(word: str, known: tuple[str, ...], most: int, cutoff: float) -> tuple[str, ...]:
    from difflib import get_close_matches

    return tuple(get_close_matches(word, known, most, cutoff))
