"""The plan's JSON Schema, the single source of truth of the format."""

from __future__ import annotations

import os

from memcheck.own_json import read_own_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "plan.schema.json"
_cache: list[dict[str, Any]] = []
_integer_keys: list[frozenset[str]] = []


def schema_path(name: str = _NAME) -> str:
    """Where a schema lies: inside the installed package, or at the top of the repository."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "schemas", name)
    return inside if os.path.exists(inside) else os.path.join(os.path.dirname(package), "schemas", name)


def load_schema() -> dict[str, Any]:
    """The schema as plain data, read once. Callers must not change it."""
    if not _cache:
        _cache.append(read_own_json(schema_path()))
    return _cache[0]


def integer_keys() -> frozenset[str]:
    """The names of keys that hold whole numbers. No other key has one of these names."""
    if not _integer_keys:
        _integer_keys.append(frozenset(_find_integer_keys()))
    return _integer_keys[0]


def _find_integer_keys() -> set[str]:
    found: set[str] = set()
    pending: list[Any] = [load_schema()]
    while pending:
        schema = pending.pop()
        for name, item in schema.get("properties", {}).items():
            pending.append(item)
            if any(each.get("type") == "integer" for each in (item, *item.get("anyOf", ()))):
                found.add(name)
        pending += schema.get("definitions", {}).values()
    return found
