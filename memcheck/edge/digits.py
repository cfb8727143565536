"""Whole numbers in text that anyone may have written."""

from __future__ import annotations

MOST_DIGITS = 18
"""More make no size, and Python refuses to read some thousands of them."""


def whole_number(text: str) -> int | None:
    """The number that at most 18 ASCII digits are; None for any other text.

    ``str.isdigit`` is true of ``²`` as well, which is no number.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
