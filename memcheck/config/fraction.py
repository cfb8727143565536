"""Shares of capacity as people write them."""

from __future__ import annotations


def fraction(written: object) -> float:
    """``0.9`` or ``90%`` as a number in (0, 1].

    Raises:
        ValueError: anything else; the message says what was written and what is allowed.
    """
    number = _number(written)
    if number is None or not 0 < number <= 1:
        raise ValueError(
            f"{written!r} is not a share of capacity: write a number in (0, 1] or a percentage such as 90%"
        )
    return number


def _number(written: object) -> float | None:
    if isinstance(written, bool):
        return None
    if isinstance(written, (int, float)):
        return float(written)
    if not isinstance(written, str):
        return None
    text = written.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
