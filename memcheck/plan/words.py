"""Schemas and values in a user's words: YAML's, not Python's."""

from __future__ import annotations

from typing import Any

from memcheck.plan.lookup import branches, has_type
from memcheck.plan.valid import Schema

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "`true` or `false`",
    "number": "a number",
    "integer": "a whole number",
}


def expected(schema: Schema, value: object, root: Schema) -> str:
    """What a schema takes instead of ``value``, as the text that follows ``must be``.

    Of a union, the branches that take a scalar when the value is one, else the branch of the value's type.
    """
    union = branches(schema, root)
    if isinstance(value, (dict, list)):
        options = [each for each in union if has_type(each, value)]
    else:
        options = [each for each in union if each.get("type") not in {"object", "array"}]
    options = options or union
    alone = len(options) == 1
    return " or ".join(_expected(each, value, titled=len(union) > 1, alone=alone) for each in options)


def _expected(schema: Schema, value: object, *, titled: bool, alone: bool) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    names = schema.get("enum")
    if names is not None and (alone or len(names) == 1):
        return f"one of {listed(names)}" if len(names) > 1 else listed(names)
    if "title" in schema and (titled or "type" not in schema):
        return str(schema["title"])
    return _TYPES[schema["type"]] + _bounds(schema, value)


def _bounds(schema: Schema, value: object) -> str:
    least, above, most = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if most is not None and isinstance(value, (int, float)) and value > most >= 1000:
        return f" of at most {most}"
    if above is not None:
        return f" above {above}"
    if least is None:
        return ""
    # An upper bound that only keeps out nonsense is not worth a reader's time until it is met.
    return f" from {least} to {most}" if most is not None and most < 1000 else f" of at least {least}"


def found(value: object, text: str) -> str:
    """A value, as the text that follows ``not`` in a message. ``text``: the value as it is written."""
    shown = f"`{shorten(text)}`"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return shown if text else "nothing"
    if isinstance(value, bool):
        return f"the boolean {shown}" if text else "a boolean"
    if isinstance(value, str):
        return f"the text {shown}" if text else f"the text `{shorten(value)}`"
    written = text[:1] in "+-.*0123456789" if text else False  # in a framework's config the mark may be on the key
    return f"the number {shown}" if written else f"the number `{value}`"


def flow(value: object) -> str:
    """A value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shorten(text: str, room: int = 40) -> str:
    """The text on one line, cut to at most ``room`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= room else text[: room - 3] + "..."


def listed(names: Any, word: str = "or") -> str:
    """Names in backticks with commas between them, and ``word`` before the last one."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def key_path(tokens: list[str]) -> str:
    """A pointer's tokens as a user says them: ``training.lora.rank``, ``item 2 of training.freeze``."""
    if tokens and tokens[-1].isdecimal():
        return f"item {int(tokens[-1]) + 1} of {key_path(tokens[:-1])}"
    return f"`{tokens[-1]}`" if tokens else "a plan"
