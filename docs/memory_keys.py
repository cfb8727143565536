"""Writes what the plan's schema says about memory, so that a search for remedies need not read the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULE = ROOT / "memcheck" / "what_if" / "remedies" / "memory_keys.py"
OF_KEY, OF_OPTIONS = "x-memory", "x-memory-options"
WORDS = {"true": True, "false": False}


def plan_schema() -> Any:
    """``schemas/plan.schema.json``."""
    return json.loads((ROOT / "schemas" / "plan.schema.json").read_text(encoding="utf-8"))


def keys_of(schema: Any) -> dict[str, Any]:
    """Every dotted key of a plan that has no fields of its own, and its part of the schema."""
    found: dict[str, Any] = {}
    for key, node in _properties(schema, schema, ""):
        found.setdefault(key, node)
    return {key: node for key, node in found.items() if not any(other.startswith(f"{key}.") for other in found)}


def _properties(schema: Any, node: Any, under: str) -> Iterator[tuple[str, Any]]:
    if "$ref" in node:
        _, section, name = node["$ref"].split("/")
        node = schema[section][name]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for each in node.get(keyword, ()):
            yield from _properties(schema, each, under)
    for name, each in node.get("properties", {}).items():
        yield f"{under}{name}", each
        yield from _properties(schema, each, f"{under}{name}.")


def annotations(schema: Any) -> dict[str, Any]:
    """The annotation of every key and of every option that has one, by its dotted name."""
    found = {key: node[OF_KEY] for key, node in keys_of(schema).items() if OF_KEY in node}
    for key, node in keys_of(schema).items():
        found.update({f"{key}.{option}": each for option, each in node.get(OF_OPTIONS, {}).items()})
    return found


def derived(schema: Any) -> dict[str, tuple[str, tuple[tuple[object, str], ...]]]:
    """Keys whose values have words: the result, and each value with what it does, from the mildest on."""
    return {
        key: (each["result"], tuple((_value(value), words) for value, words in each["lower"].items()))
        for key, each in annotations(schema).items()
        if isinstance(each["lower"], dict)
    }


def _value(word: str) -> object:
    return WORDS.get(word, int(word) if word.isdecimal() else word)


def memory_keys() -> dict[Path, str]:
    """The module, as it should be."""
    rows = ""
    for key, (result, values) in derived(plan_schema()).items():
        rows += f"    {json.dumps(key)}: (\n        {json.dumps(result)},\n        (\n"
        rows += "".join(f"            ({_literal(value)}, {json.dumps(words)}),\n" for value, words in values)
        rows += "        ),\n    ),\n"
    return {
        MODULE: '"""Values with which a key of a plan needs less memory, as the schema of plans states them."""\n\n'
        "# Written by `python -m docs.generate` from schemas/plan.schema.json: edit that and run it again.\n\n"
        "from __future__ import annotations\n\n"
        "LOWER: dict[str, tuple[str, tuple[tuple[object, str], ...]]] = {\n" + rows + "}\n"
        '"""Dotted key to what it does to the result of the training (`same` or `other`), and its values with their\n'
        'words. The value that frees least comes first."""\n'
    }


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
