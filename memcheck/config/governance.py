"""Reads the table ``[policy]`` of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.errors import UsageError
from memcheck.rules.governance import Governance


def read_governance(written: object) -> Governance:
    """The table, checked.

    Raises:
        ValueError: it is no table, or a value is of the wrong kind.
    """
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table")  # noqa: TRY004 - a wrong value like the others
    values: dict[str, object] = {}
    for key, value in written.items():
        if key not in READERS:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(READERS)}")
        try:
            values[key.replace("-", "_")] = READERS[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
        except UsageError as error:
            raise ValueError(f"{key}: {error.message}") from error
    return Governance(**values)  # type: ignore[arg-type]


def _switch(written: object) -> bool:
    if not isinstance(written, bool):
        raise ValueError(f"{written!r} is neither true nor false")  # noqa: TRY004
    return written


def _count(written: object) -> int:
    if isinstance(written, bool) or not isinstance(written, int) or written < 1:
        raise ValueError(f"{written!r} is not a whole number of at least 1")
    return written


def _hours(written: object) -> float:
    if isinstance(written, bool) or not isinstance(written, (int, float)) or not 0 < written < float("inf"):
        raise ValueError(f"{written!r} is not a number above 0")
    return float(written)


def _names(written: object) -> tuple[str, ...]:
    """At least one name: an empty list would read as if nothing were laid down."""
    if not isinstance(written, list) or not written or not all(isinstance(each, str) and each for each in written):
        raise ValueError(f"{written!r} is not a list of names")
    return tuple(written)


def _rules(written: object) -> tuple[str, ...]:
    from memcheck.config.select import known

    return known(_names(written))


READERS: dict[str, Callable[[object], object]] = {
    "locked": _switch,
    "locked-rules": _rules,
    "allowed-gpus": _names,
    "max-gpus": _count,
    "max-gpu-hours": _hours,
    "forbid-suppressions": _switch,
    "require-interval": _switch,
    "forbid-unseen": _switch,
}
