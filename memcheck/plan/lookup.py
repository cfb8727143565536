"""What the schema and the text say at one place of a plan."""

from __future__ import annotations

from typing import Any

from memcheck.finding import Location
from memcheck.plan.document import Document
from memcheck.plan.valid import Schema, is_type, target

_MISSING = object()


def schema_at(value: Any, tokens: list[str], root: Schema) -> Schema | None:
    """The schema of the value that ``tokens`` lead to.

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
    """The schema of a dotted key; None where the format has none, and ``{}`` where it takes anything."""
    found: Schema = root
    for token in key.split("."):
        mappings = [each for each in branches(found, root) if each.get("type") == "object"]
        below = next((each["properties"][token] for each in mappings if token in each.get("properties", {})), None)
        if below is None:
            return {} if any(each.get("additionalProperties", True) for each in mappings) else None
        found = below
    return found


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference leads to, over several references if need be."""
    while "$ref" in schema:
        schema = target(schema["$ref"], root)
    return schema


def branch(schema: Schema | None, value: object, root: Schema) -> Schema | None:
    """The schema that references lead to; for a union the branch with the value's type, None where no branch has it."""
    if schema is None:
        return None
    return next((each for each in branches(schema, root) if has_type(each, value)), None)


def branches(schema: Schema, root: Schema) -> list[Schema]:
    """The branches of a union, which differ in type; a schema that is no union is its own branch."""
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
    """The value that tokens lead to; a fresh object, equal to nothing, when they lead nowhere."""
    for token in tokens:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
            value = value[int(token)]
        else:
            return _MISSING
    return value


def text_at(document: Document, location: Location) -> str:
    """The text of a scalar as it is written; empty when it spans lines."""
    span = location.span
    lines = document.sources.get(location.path, ())
    if span.line != span.end_line or span.line > len(lines):
        return ""
    return lines[span.line - 1][span.column - 1 : span.end_column - 1]


def is_plain(text: str) -> bool:
    """Whether a scalar is written without quotes."""
    return text[:1] not in {'"', "'", "|", ">", ""}
