"""A plan with some values replaced, as if they had been written in its file: ``--set``, ``--gpu``, remedies.

``read_stated`` reads ``KEY=VALUE`` of a command line as the plan's file would have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from memcheck.edge.libyaml import yaml
from memcheck.plan.places import Document
from memcheck.plan.schema import load_schema, schema_of, types

SHORT = {
    "hardware.gpu": "name",
    "training.trainer": "name",
    "training.objective": "name",
    "training.head": "kind",
    "training.lora": "rank",
    "training.precision": "recipe",
    "training.optimizer": "name",
    "training.activation_checkpointing": "mode",
    "training.loss": "kind",
    "training.initialization": "place",
    "training.checkpoint": "state_dict",
}
"""Keys that may be written as one word, and the field that the word then is."""
MODEL = "model"
BESIDE_A_NAME = "overrides"
"""The field of a model that may be set together with its name; any other field replaces the name."""


def with_changes(document: Document, changes: Mapping[str, object]) -> Document:
    """Return the document with dotted keys set to new values; missing mappings on the way are made.

    If a mapping is written as one word (``gpu: h100-80gb``) and a field of it is set, the word becomes the field that
    it stands for. The places of values stay what they were: a finding about a changed value points at what it replaced.
    """
    top: dict[str, object] = {"": document.values}
    own: set[int] = set()
    """Mappings that were made here. Others are copied: aliases share objects, and no other place may show a change."""
    for key, value in changes.items():
        place, name, above = top, "", ""
        for part in fields(key):
            found = place.get(name)
            if isinstance(found, dict) and id(found) in own:
                table = found
            else:
                table = dict(found) if isinstance(found, dict) else _long(found, above, part)
                own.add(id(table))
                place[name] = table
            place, name, above = table, part, f"{above}.{part}" if above else part
        place[name] = value
    pointers = tuple(["/" + key.replace(".", "/") for key in changes])
    return document._replace(values=top[""], changed=document.changed + pointers)


@lru_cache(maxsize=1024)
def fields(key: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    return tuple(key.split("."))


def _long(written: object, key: str, field: str) -> dict[str, object]:
    """Return the mapping that a short form stands for; an empty one where there is none."""
    if written is None:
        return {}
    if key == MODEL:
        return {"name": written} if field == BESIDE_A_NAME else {}
    return {SHORT[key]: written} if key in SHORT else {}


_NUMBERS = {"integer", "number"}
_VERSION = "_version"
"""How options of a framework end whose values are releases; the schema takes any value of an option."""


def read_stated(written: str) -> tuple[str, object]:
    """Read the dotted key and its value, read as YAML; a key of text keeps what is written (``4.40``).

    Raises:
        ValueError: it is of another form, no YAML, or not finite.
    """
    key, equals, text = written.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(f"{written!r} is not of the form training.micro_batch_size=4")
    try:
        value = yaml.safe_load(text)
        finite = _is_finite(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 45th of January
        raise ValueError(f"the value of {key} is not YAML: {text!r}") from error
    if not finite:
        raise ValueError(f"the value of {key} must be finite: {text!r}")
    plain = value is not None and not isinstance(value, (str, bool, list, dict))
    return key, text.strip() if plain and _takes_text(key) else value


def _takes_text(key: str) -> bool:
    """Say whether the schema has a text and no number for the key."""
    root = load_schema()
    found = schema_of(key, root)
    if not found:
        return found is not None and key.endswith(_VERSION)
    known = types(found, root)
    return "string" in known and known.isdisjoint(_NUMBERS)


def _is_finite(value: object) -> bool:
    """No NaN and no infinity at any depth. Ends in RecursionError for a value that contains itself."""
    if isinstance(value, float):
        return math.isfinite(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, children))
