"""The known words that are closest to an unknown word, which a user may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

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
