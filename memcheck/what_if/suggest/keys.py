"""The keys that ``--keep`` knows: every section and key of the plan format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memcheck.errors import UsageError
from memcheck.plan.lookup import branches
from memcheck.plan.schema import load_schema

SECTIONS = ("model", "hardware", "parallelism", "training", "inference")


def known_keys() -> tuple[str, ...]:
    """Dotted keys of what a search may change, sections included."""
    schema = load_schema()
    properties = schema["properties"]
    found = [(name, *_below(properties[name], schema, name)) for name in SECTIONS]
    return tuple(dict.fromkeys(key for keys in found for key in keys))


def _below(schema: dict[str, Any], root: dict[str, Any], prefix: str) -> Iterator[str]:
    for branch in branches(schema, root):
        for name, item in branch.get("properties", {}).items():
            key = f"{prefix}.{name}"
            yield key
            yield from _below(item, root, key)


def check_keys(keys: Sequence[str]) -> None:
    """Raises UsageError for a key that no plan has: what is not there cannot be kept."""
    known = known_keys()
    for key in keys:
        if key not in known:
            from memcheck.edge.closest import closest

            close = closest(key, known) or [each for each in known if each.endswith(f".{key}")][:1]
            hint = f"did you mean {close[0]}?" if close else "a dotted key of the plan, as training.optimizer"
            raise UsageError(f"--keep {key}: plans have no such key", hint)
