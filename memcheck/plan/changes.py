"""A plan with some values replaced, as if they had been written in its file: ``--set``, ``--gpu``, remedies."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.plan.document import Document
from memcheck.remembered import lru_cache

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
    """The document with dotted keys set to new values; missing mappings on the way are made.

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
    """The mapping that a short form stands for; an empty one where there is none."""
    if written is None:
        return {}
    if key == MODEL:
        return {"name": written} if field == BESIDE_A_NAME else {}
    return {SHORT[key]: written} if key in SHORT else {}
