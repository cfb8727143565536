"""The plan's JSON Schema, the single source of truth of the format: whether a value conforms to it, and what it says.

The check is fast and does without the jsonschema library. It interprets the keywords that the plan schema uses, as
draft-07 defines them: a boolean is no integer, 4.0 is one. :mod:`memcheck.plan.explain` says why a value does not
conform. What is said of one place of a plan is in a user's words: YAML's, not Python's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from memcheck.edge.json_text import read_own_json
from memcheck.plan.finding import Location
from memcheck.plan.places import Document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_NAME = "plan.schema.json"
_cache: list[dict[str, Any]] = []
_integer_keys: list[frozenset[str]] = []


def schema_path(name: str = _NAME) -> str:
    """Say where a schema lies: inside the installed package, or at the top of the repository."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "schemas", name)
    return inside if os.path.exists(inside) else os.path.join(os.path.dirname(package), "schemas", name)


def load_schema() -> dict[str, Any]:
    """Return the schema as plain data, read once. Callers must not change it."""
    if not _cache:
        _cache.append(read_own_json(schema_path()))
    return _cache[0]


def integer_keys() -> frozenset[str]:
    """Return the names of keys that hold whole numbers. No other key has one of these names."""
    if not _integer_keys:
        _integer_keys.append(frozenset(_find_integer_keys()))
    return _integer_keys[0]


def _find_integer_keys() -> set[str]:
    """Collect the names of all keys whose schema takes whole numbers."""
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
    """Say whether ``value`` conforms to ``schema``; ``root`` is where ``$ref`` points into."""
    for keyword, argument in schema.items():
        check = CHECKS.get(keyword)
        if check is not None and not check(argument, value, schema, root):
            return False
    return True


def target(reference: str, root: Schema) -> Schema:
    """Return what ``#/definitions/name`` refers to."""
    found: Schema = root["definitions"][reference.rpartition("/")[2]]
    return found


def is_type(name: str, value: object) -> bool:
    """Say whether a value has a JSON type."""
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
    """Say whether a text matches the pattern; other values conform."""
    if value.__class__ is not str:
        return True
    if len(value) < 100 and "\n" not in value:  # before which `$` matches, too
        from memcheck.edge.expressions import Expression

        return Expression(pattern).begins(value)
    import re  # takes longer to load than most plans to check

    return re.search(pattern, value) is not None


def _properties(properties: Schema, value: Any, _schema: Schema, root: Schema) -> bool:
    """Say whether all known keys of a mapping conform to their schemas."""
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


_MISSING = object()


def schema_at(value: Any, tokens: list[str], root: Schema) -> Schema | None:
    """Return the schema of the value that ``tokens`` lead to.

    ``{}`` inside an open mapping, where any key is valid; None below a key that the schema does not have.
    """
    schema: Schema | None = root
    for token in tokens:
        schema = branch(schema, value, root)
        if not schema:
            return schema
        if isinstance(value, list):
            schema, value = schema.get("items", {}), value[int(token)]
        else:
            unknown: Schema | None = {} if schema.get("additionalProperties", True) else None
            schema, value = schema.get("properties", {}).get(token, unknown), value[token]
    return schema


def schema_of(key: str, root: Schema) -> Schema | None:
    """Return the schema of a dotted key; None where the format has none, and ``{}`` where it takes anything."""
    found: Schema = root
    for token in key.split("."):
        mappings = [each for each in branches(found, root) if each.get("type") == "object"]
        below = next((each["properties"][token] for each in mappings if token in each.get("properties", {})), None)
        if below is None:
            return {} if any(each.get("additionalProperties", True) for each in mappings) else None
        found = below
    return found


def resolved(schema: Schema, root: Schema) -> Schema:
    """Return the schema that a reference leads to, over several references if need be."""
    while "$ref" in schema:
        schema = target(schema["$ref"], root)
    return schema


def branch(schema: Schema | None, value: object, root: Schema) -> Schema | None:
    """Return the schema that references lead to; for a union the branch with the value's type, None where no branch has
    it.
    """
    if schema is None:
        return None
    return next((each for each in branches(schema, root) if has_type(each, value)), None)


def branches(schema: Schema, root: Schema) -> list[Schema]:
    """Return the branches of a union, which differ in type; a schema that is no union is its own branch."""
    schema = resolved(schema, root)
    if "anyOf" in schema and "type" not in schema:
        return [each for item in schema["anyOf"] for each in branches(item, root)]
    return [schema]


def has_type(schema: Schema, value: object) -> bool:
    """Whether the value has the type of the schema, if it has one."""
    return "type" not in schema or is_type(schema["type"], value)


def types(schema: Schema, root: Schema) -> set[str]:
    """The JSON types that a schema allows."""
    return {each["type"] for each in branches(schema, root) if "type" in each}


def value_at(value: Any, tokens: list[str]) -> object:
    """Return the value that tokens lead to; a fresh object, equal to nothing, when they lead nowhere."""
    for token in tokens:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
            value = value[int(token)]
        else:
            return _MISSING
    return value


def text_at(document: Document, location: Location) -> str:
    """Return the text of a scalar as it is written; empty when it spans lines."""
    span = location.span
    lines = document.sources.get(location.path, ())
    if span.line != span.end_line or span.line > len(lines):
        return ""
    return lines[span.line - 1][span.column - 1 : span.end_column - 1]


def is_plain(text: str) -> bool:
    """Whether a scalar is written without quotes."""
    return text[:1] not in {'"', "'", "|", ">", ""}


def flow(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shorten(text: str, room: int = 40) -> str:
    """Return the text on one line, cut to at most ``room`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= room else text[: room - 3] + "..."


def listed(names: Any, word: str = "or") -> str:
    """Return names in backticks with commas between them, and ``word`` before the last one."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def key_path(tokens: list[str]) -> str:
    """Return a pointer's tokens as a user says them: ``training.lora.rank``, ``item 2 of training.freeze``."""
    if tokens and tokens[-1].isdecimal():
        return f"item {int(tokens[-1]) + 1} of {key_path(tokens[:-1])}"
    return f"`{tokens[-1]}`" if tokens else "a plan"
