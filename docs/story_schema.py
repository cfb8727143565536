"""The JSON Schema of a report's document, from the records that it is made of: their fields, types and docstrings."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from memcheck.report.story.build import BLOCKS

STORY = Path(__file__).resolve().parents[1] / "memcheck" / "report" / "story"
PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}
PLACE = {
    "type": "object",
    "description": "A place in a file: line and column, from 1.",
    "required": ["line", "column"],
    "properties": {
        "line": {"type": "integer", "minimum": 1, "description": "The line."},
        "column": {"type": "integer", "minimum": 1, "description": "The column."},
    },
}
EDITS: dict[str, Any] = {
    "Edit": {
        "type": "object",
        "description": "Replace the text between two places of a file; an empty span inserts.",
        "required": ["start", "end", "text"],
        "properties": {"start": PLACE, "end": PLACE, "text": {"type": "string", "description": "The new text."}},
    },
    "FileEdits": {
        "type": "object",
        "description": "Edits of one file.",
        "required": ["path", "edits"],
        "properties": {
            "path": {"type": "string", "description": "The file."},
            "edits": {"type": "array", "description": "The edits.", "items": {"$ref": "#/definitions/Edit"}},
        },
    },
}


def story_schema() -> str:
    """The schema as text."""
    classes = {node.name: node for file in ("__init__", "blocks") for node in records(STORY / f"{file}.py")}
    definitions = {name: definition(node) for name, node in classes.items() if name != "Story"}
    blocks = [{"$ref": f"#/definitions/{kind.__name__}"} for kind in BLOCKS]
    definitions["Block"] = {"description": "A part of a section, by its kind.", "oneOf": blocks}
    story = definition(classes["Story"])
    version = story["properties"].pop("version")
    found = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The document of a memcheck report",
        "description": "What `memcheck check --format story` and `memcheck estimate --format story` print.",
        "type": "object",
        "required": ["story", "memcheck", *story["properties"]],
        "properties": {
            "story": {"const": 1, "description": "The version of this format."},
            "memcheck": {**version, "description": "The version of memcheck that wrote the document."},
            **story["properties"],
        },
        "definitions": dict(sorted({**definitions, **EDITS}.items())),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def records(path: Path) -> list[ast.ClassDef]:
    """The records of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def definition(node: ast.ClassDef) -> dict[str, Any]:
    """One record: every field is there, with its type and what its docstring says of it."""
    properties: dict[str, Any] = {}
    kind = {each.__name__: word for each, word in BLOCKS.items()}.get(node.name)
    if kind:
        properties["block"] = {"const": kind, "description": "The kind of the block."}
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            told = docstring(after) or f"{name.replace('_', ' ').capitalize()}."
            found = typed(field.annotation)
            properties[name] = (
                {"allOf": [found], "description": told} if "$ref" in found else {**found, "description": told}
            )
    described = ast.get_docstring(node) or node.name
    return {"type": "object", "description": folded(described), "required": list(properties), "properties": properties}


def docstring(node: ast.stmt | None) -> str:
    """The docstring of a field; empty where it has none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return folded(node.value.value)
    return ""


def folded(text: str) -> str:
    """A docstring as one line without the marks of its code."""
    return " ".join(text.split()).replace("``", "`").replace(":data:", "")


def typed(node: ast.expr) -> dict[str, Any]:
    """The schema of an annotation."""
    if isinstance(node, ast.BinOp):  # X | None
        return {"anyOf": [typed(node.left), typed(node.right)]}
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    if isinstance(node, ast.Name):
        if node.id == "object":
            return {}
        return {"type": PLAIN[node.id]} if node.id in PLAIN else {"$ref": f"#/definitions/{node.id}"}
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        first, second = node.slice.elts
        if ast.unparse(node.value) == "Mapping":
            return {"type": "object", "additionalProperties": typed(second)}
        if isinstance(second, ast.Constant) and second.value is Ellipsis:
            return {"type": "array", "items": typed(first)}
        return {"type": "array", "items": [typed(first), typed(second)], "minItems": 2, "maxItems": 2}
    raise TypeError(f"no schema for {ast.unparse(node)}")
