"""Which keys a plan has: what a config says and no key of a plan can is refused at its line, never dropped."""

from __future__ import annotations

from memcheck.plan.lookup import branches
from memcheck.plan.schema import load_schema
from memcheck.plan.valid import Schema, conforms

ANY = object()


def speaks(key: str, value: object = ANY) -> bool:
    """Whether a plan has a dotted key, and takes this value for it."""
    root = load_schema()
    places: list[Schema] = [root]
    for name in key.split("."):
        below = [found["properties"][name] for found in places if name in found.get("properties", ())]
        open_ends = [found for found in places if found.get("additionalProperties", True) and "properties" not in found]
        places = [branch for schema in below for branch in branches(schema, root)]
        if not places:
            return bool(open_ends)
    return value is ANY or any(conforms(value, schema, root) for schema in places)
