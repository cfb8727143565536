"""A plan with some values replaced, as if they had been written in its file: ``--set``, ``--gpu``, remedies."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.source.types import Document

SHORT = {
    "hardware.gpu": "name",
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
"""Of the fields of a model only these stand beside its name; the others take its place."""


def with_changes(document: Document, changes: Mapping[str, object]) -> Document:
    """The document with dotted keys set to new values; missing mappings on the way are made.

    A field of what is written as one word (``gpu: h100-80gb``) is set beside that word, which becomes the field that it
    stands for. The places of values stay what they were: a finding about a changed value points at what it replaced.
    """
    values = document.values
    for key, value in changes.items():
        values = _with(values, key.split("."), value, "")
    pointers = tuple("/" + key.replace(".", "/") for key in changes)
    return document._replace(values=values, changed=document.changed + pointers)


def _with(values: object, keys: list[str], value: object, above: str) -> object:
    """A copy along the path only: aliases share objects, and a change in one place must not show in another."""
    if not keys:
        return value
    table = dict(values) if isinstance(values, dict) else _long(values, above, keys[0])
    table[keys[0]] = _with(table.get(keys[0]), keys[1:], value, f"{above}.{keys[0]}" if above else keys[0])
    return table


def _long(written: object, key: str, field: str) -> dict[str, object]:
    """The mapping that a short form stands for; an empty one where there is none."""
    if written is None:
        return {}
    if key == MODEL:
        return {"name": written} if field == BESIDE_A_NAME else {}
    return {SHORT[key]: written} if key in SHORT else {}
