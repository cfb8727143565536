"""Which keys of a plan changed, from its two states as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.edge.text import clean, value
from memcheck.plan.changes import SHORT

UNCOUNTED = frozenset({"memcheck", "name", "description", "extends"})
"""Keys at the top that change nothing about the job."""
MOST = 8
LONGEST = 60
"""The most characters of one value that are shown."""

Changed = tuple[str, object, object]
"""A dotted key, its value before and after; None where it is not stated."""


def changed_keys(before: object, after: object) -> tuple[Changed, ...]:
    """The keys whose values differ, in the order of the plans."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return tuple((key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key))


def told(changes: tuple[Changed, ...], arrow: str, most: int = MOST) -> list[str]:
    """Lines such as ``training.micro_batch_size 2 -> 6``: at most ``most`` changes, then the number of further ones."""
    lines = [f"{clean(key)} {_short(old)} {arrow} {_short(new)}" for key, old, new in changes[:most]]
    return lines if len(changes) <= most else [*lines, f"{len(changes) - most:,} more"]


def _short(item: object) -> str:
    text = " ".join(clean(value(item)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _flat(values: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no mapping, under its dotted key; what is written as one word under the field that it is."""
    if not isinstance(values, dict):
        yield path, values
        return
    for name, item in values.items():
        if not path and name in UNCOUNTED:
            continue
        key = f"{path}.{name}" if path else str(name)
        if key in SHORT and not isinstance(item, dict):
            yield f"{key}.{SHORT[key]}", item
        elif isinstance(item, dict) and item:
            yield from _flat(item, key)
        else:
            yield key, item
