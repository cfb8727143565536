"""JSON Schemas of the reports, draft 7, made of the pydantic models."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from memcheck.report.models import Data, ReportData
from memcheck.what_if.suggest.models import SuggestionsData

MODELS: dict[str, tuple[type[Data], str]] = {
    "report": (ReportData, "memcheck report, version 1"),
    "suggest": (SuggestionsData, "memcheck suggestions, version 1"),
}
"""Name of the schema to its model and title."""


class Draft7(GenerateJsonSchema):
    """Definitions under draft 7's name, and no title but those of models."""

    schema_dialect = "http://json-schema.org/draft-07/schema#"

    def get_title_from_name(self, name: str) -> str:
        """No title for a property: its name says the same."""
        return ""


def schema_text(name: str) -> str:
    """The text of ``schemas/NAME.schema.json``."""
    model, title = MODELS[name]
    made = model.model_json_schema(schema_generator=Draft7, ref_template="#/definitions/{model}")
    definitions = {}
    for key, value in made.pop("$defs").items():
        spaced = _name(key).replace("_", " ").capitalize()
        definitions[_name(key)] = {"title": spaced, **_plain({k: v for k, v in value.items() if k != "title"})}
    made = {**_plain(made), "title": title}
    order = ("title", "description", "type", "properties", "required")
    text = {"$schema": Draft7.schema_dialect, **{key: made[key] for key in order}, "definitions": definitions}
    return json.dumps(text, indent=2, ensure_ascii=False) + "\n"


def _name(model: str) -> str:
    """``FileEditsData`` is defined as ``file_edits``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.removesuffix("Data")).lower()


def _plain(node: Any) -> Any:
    """The schema without empty titles and defaults, its texts on one line."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            found[key] = {name: _plain(each) for name, each in value.items()}
        elif key == "description":
            found[key] = " ".join(str(value).split())
        elif key == "$ref":
            found[key] = "#/definitions/" + _name(value.rpartition("/")[2])
        elif key == "default" or (key == "title" and not value):
            continue
        else:
            found[key] = _plain(value)
    return found
