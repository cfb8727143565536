"""The plan's JSON Schema, the single source of truth of the format, and whether a value conforms to it.

The check is fast and does without the jsonschema library. It interprets the keywords that the plan schema uses, as
draft-07 defines them: a boolean is no integer, 4.0 is one. :mod:`memcheck.plan.explain` says why a value does not
conform.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from memcheck.edge.own_json import read_own_json

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


if TYPE_CHECKING:
    Schema = Mapping[str, Any]
    Check = Callable[[Any, Any, Schema, Schema], bool]
else:
    Schema = Mapping


def conforms(value: object, schema: Schema, root: Schema) -> bool:
    """Whether ``value`` conforms to ``schema``; ``root`` is where ``$ref`` points into."""
    for keyword, argument in schema.items():
        check = CHECKS.get(keyword)
        if check is not None and not check(argument, value, schema, root):
            return False
    return True


def target(reference: str, root: Schema) -> Schema:
    """What ``#/definitions/name`` refers to."""
    found: Schema = root["definitions"][reference.rpartition("/")[2]]
    return found


def is_type(name: str, value: object) -> bool:
    """Whether a value has a JSON type."""
    kind = value.__class__
    if kind is float:
        return name == "number" or (name == "integer" and value.is_integer())  # type: ignore[attr-defined]
    return name in _NAMES.get(kind, ())


_NAMES: dict[type, tuple[str, ...]] = {
    dict: ("object",),
    list: ("array",),
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    type(None): ("null",),
}


def _number(value: object) -> bool:
    return value.__class__ is int or value.__class__ is float


def _type(name: str, value: Any, _schema: Schema, _root: Schema) -> bool:
    return is_type(name, value)


def _same(one: object, other: object) -> bool:
    """Equality of JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _enum(options: list[Any], value: Any, _schema: Schema, _root: Schema) -> bool:
    return any(_same(option, value) for option in options)


def _const(constant: Any, value: Any, _schema: Schema, _root: Schema) -> bool:
    return _same(constant, value)


def _pattern(pattern: str, value: Any, _schema: Schema, _root: Schema) -> bool:
    if value.__class__ is not str:
        return True
    if len(value) < 100 and "\n" not in value:  # before which `$` matches, too
        from memcheck.edge.expressions import Expression

        return Expression(pattern).begins(value)
    import re  # takes longer to load than most plans to check

    return re.search(pattern, value) is not None


def _properties(properties: Schema, value: Any, _schema: Schema, root: Schema) -> bool:
    if value.__class__ is not dict:
        return True
    for key, item in value.items():
        schema = properties.get(key)
        if schema is not None and not conforms(item, schema, root):
            return False
    return True


def _no_other_properties(_false: Any, value: Any, schema: Schema, _root: Schema) -> bool:
    return value.__class__ is not dict or value.keys() <= schema["properties"].keys()


def _required(names: list[str], value: Any, _schema: Schema, _root: Schema) -> bool:
    return value.__class__ is not dict or all(name in value for name in names)


def _dependencies(dependencies: Schema, value: Any, _schema: Schema, root: Schema) -> bool:
    return value.__class__ is not dict or all(
        conforms(value, schema, root) for name, schema in dependencies.items() if name in value
    )


def _items(schema: Schema, value: Any, _schema: Schema, root: Schema) -> bool:
    return value.__class__ is not list or all(conforms(item, schema, root) for item in value)


def _any_of(branches: list[Schema], value: Any, _schema: Schema, root: Schema) -> bool:
    return any(conforms(value, branch, root) for branch in branches)


def _one_of(branches: list[Schema], value: Any, _schema: Schema, root: Schema) -> bool:
    return sum(conforms(value, branch, root) for branch in branches) == 1


def _if(condition: Schema, value: Any, schema: Schema, root: Schema) -> bool:
    following = schema.get("then" if conforms(value, condition, root) else "else")
    return following is None or conforms(value, following, root)


CHECKS: dict[str, Check] = {
    "$ref": lambda reference, value, _, root: conforms(value, target(reference, root), root),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "additionalProperties": _no_other_properties,
    "required": _required,
    "dependencies": _dependencies,
    "minProperties": lambda least, value, *_: value.__class__ is not dict or len(value) >= least,
    "items": _items,
    "minItems": lambda least, value, *_: value.__class__ is not list or len(value) >= least,
    "minimum": lambda least, value, *_: not (_number(value) and value < least),
    "maximum": lambda most, value, *_: not (_number(value) and value > most),
    "exclusiveMinimum": lambda bound, value, *_: not (_number(value) and value <= bound),
    "minLength": lambda least, value, *_: value.__class__ is not str or len(value) >= least,
    "pattern": _pattern,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": lambda schema, value, _, root: not conforms(value, schema, root),
    "if": _if,
}
"""Keyword to ``check(argument, value, schema around it, root)``. A test holds the schema to these keywords."""
