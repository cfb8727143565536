"""Turns the plan's JSON Schema into a page: one table per mapping, one row per key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memcheck.plan.renamed import RENAMED

Schema = dict[str, Any]

TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "object": "mapping",
}


def plan_format(schema: Schema, example: str) -> str:
    """The whole page."""
    lines = [
        "# The plan format, version 1",
        "",
        schema["description"],
        "Unknown keys are errors. Several plans in one file are YAML documents, separated by `---`.",
        "Anchors and merge keys work.",
        "Every default that was used is listed in the output under *assumptions*.",
        "",
        "```yaml",
        *[line for line in example.splitlines() if not line.startswith("#")],
        "```",
        "",
        "The first line `# yaml-language-server: $schema=plan.schema.json` gives an editor completion and checks;",
        "`memcheck schema plan` prints the schema that this page is made from.",
        "",
    ]
    for path, mapping in mappings(schema, "", schema["definitions"]):
        lines += section(path, mapping, schema["definitions"])
    return "\n".join([*lines, *other_names()]).rstrip() + "\n"


def other_names() -> list[str]:
    """The keys of other tools that have an exact equal."""
    lines = ["## Keys under the names of other tools", ""]
    lines += ["They are errors ([MEM016](rules/MEM0xx.md#mem016)). `check --fix` writes the plan's key and value."]
    lines += ["A value that is not listed has no exact equal and is left to you.", ""]
    lines += ["| in | written | of | is | values |", "|---|---|---|---|---|"]
    for entry in RENAMED:
        values = ", ".join(f"`{old}` → `{new}`" for old, new in entry.values.items() if old != new)
        lines.append(f"| `{entry.section}` | `{entry.old}` | {entry.origin} | `{entry.new}` | {values} |")
    return lines


def mappings(schema: Schema, path: str, definitions: Schema) -> Iterator[tuple[str, Schema]]:
    """Every mapping with keys of its own, and where it stands, outermost first."""
    for branch in branches(schema, definitions):
        if "properties" in branch:
            yield path, branch
            for key, value in branch["properties"].items():
                yield from mappings(value, f"{path}.{key}".lstrip("."), definitions)


def branches(schema: Schema, definitions: Schema) -> list[Schema]:
    """The alternatives of a value, references followed."""
    schema = followed(schema, definitions)
    if "anyOf" in schema and "properties" not in schema:
        return [found for branch in schema["anyOf"] for found in branches(branch, definitions)]
    return [schema]


def followed(schema: Schema, definitions: Schema) -> Schema:
    """The schema a reference leads to."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
    return schema


def section(path: str, mapping: Schema, definitions: Schema) -> list[str]:
    """One mapping: its heading, what it is, and a row per key."""
    if path:
        depth = "##" if "." not in path else "###"
        lines = [f"{depth} `{path}`", "", mapping.get("description", ""), ""]
    else:
        lines = ["## Top level", ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, value in mapping["properties"].items():
        about = followed(value, definitions)
        own = f"{path}.{key}".lstrip(".")
        default = code(about["default"]) if about.get("default") not in (None, {}, []) else ""
        kinds = ", ".join(dict.fromkeys(kind(branch, own, definitions) for branch in branches(value, definitions)))
        lines.append(f"| `{key}` | {cell(kinds)} | {cell(default)} | {cell(meaning(about))} |")
    return [*lines, ""]


def kind(schema: Schema, path: str, definitions: Schema) -> str:
    """What a value may be."""
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(followed(schema['items'], definitions), path, definitions)}"
    if "properties" in schema:
        return f"[mapping](#{path.replace('.', '')})"
    name = TYPES.get(schema.get("type", ""), "")
    title = schema.get("title", "")
    if title.startswith(("a ", "an ")):  # a branch says in its title what it takes
        return title
    return f"{name}{limits(schema)}"


def limits(schema: Schema) -> str:
    """The range of a number; upper ends that only keep out slips of the keyboard are left out."""
    if "minimum" in schema and schema.get("maximum", 100) < 100:
        return f" {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f" ≥ {schema['minimum']}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    return ""


def meaning(schema: Schema) -> str:
    """The description, with the first example where that is not a mapping."""
    text = schema.get("description", "")
    examples = [value for value in schema.get("examples", []) if not isinstance(value, dict)]
    if examples and "enum" not in schema and "const" not in schema and examples[0] != schema.get("default"):
        text += f" Example: {code(examples[0])}."
    return text


def code(value: object) -> str:
    """A value as YAML would have it, for people."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`"


def cell(text: str) -> str:
    """Text that stays inside its cell."""
    return text.replace("|", "\\|").replace("\n", " ")
