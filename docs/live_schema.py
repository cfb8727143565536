"""The JSON Schema of the messages of ``memcheck.live``: requests from their table, replies from their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.story_schema import STORY, definition, records
from memcheck.live.replies import STEPS
from memcheck.live.requests import LONGEST_ID, MOST_KEYS, REQUESTS, Field, RequestForm

REPLIES = Path(__file__).resolve().parents[1] / "memcheck" / "live" / "replies.py"
ID = {
    "anyOf": [{"type": "integer"}, {"type": "string", "maxLength": LONGEST_ID}],
    "description": "The number of the request, which its replies repeat.",
}
TYPES: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "whole": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
    "id": {"anyOf": ID["anyOf"]},
    "files": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    "keys": {"type": "object", "maxProperties": MOST_KEYS},
    "words": {"type": "array", "items": {"type": "string"}, "maxItems": MOST_KEYS},
    "lists": {"type": "object", "additionalProperties": {"type": "array"}, "maxProperties": MOST_KEYS},
}
"""The schema of each kind of field."""


def live_schema() -> str:
    """The schema as text."""
    classes = {node.name: node for node in records(REPLIES)}
    classes |= {node.name: node for node in records(STORY / "blocks.py") if node.name == "Verdict"}
    definitions = {name: definition(node) for name, node in classes.items()}
    for word, kind in STEPS.items():
        made = definitions[kind.__name__]
        made["required"] = ["id", "step", *made["required"]]
        numbered = {
            "anyOf": [*ID["anyOf"], {"type": "null"}],
            "description": "The id of the request; null if it had none.",
        }
        made["properties"] = {"id": numbered, "step": {"const": word, "description": "The step."}, **made["properties"]}
    definitions |= {f"{word.capitalize()}Request": request(word, each) for word, each in REQUESTS.items()}
    definitions["Request"] = {
        "description": "A request, by its word.",
        "oneOf": [{"$ref": f"#/definitions/{word.capitalize()}Request"} for word in REQUESTS],
    }
    definitions["Reply"] = {
        "description": "One step of an answer. The last step of every request is `done`.",
        "oneOf": [{"$ref": f"#/definitions/{kind.__name__}"} for kind in STEPS.values()],
    }
    found = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The messages of memcheck's page",
        "description": "What `memcheck.live.protocol.handle` takes and yields.",
        "anyOf": [{"$ref": "#/definitions/Request"}, {"$ref": "#/definitions/Reply"}],
        "definitions": dict(sorted(definitions.items())),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def request(word: str, each: RequestForm) -> dict[str, Any]:
    """One kind of request."""
    fields = {name: field(one) for name, one in each.fields.items()}
    return {
        "type": "object",
        "description": each.told,
        "required": ["id", "do", *(name for name, one in each.fields.items() if one.required)],
        "additionalProperties": False,
        "properties": {"id": ID, "do": {"const": word, "description": "The word of the request."}, **fields},
    }


def field(each: Field) -> dict[str, Any]:
    """One field of a request."""
    found = {**TYPES[each.kind], "description": each.told}
    if each.words and each.kind == "words":
        found["items"] = {"enum": list(each.words)}
    elif each.words:
        found["enum"] = list(each.words)
    return found
