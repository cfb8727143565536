"""Plan values by dotted key, with what may be written as one word spelled out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SHORT = {
    "model": "name",
    "hardware.gpu": "name",
    "training.lora": "rank",
    "training.precision": "recipe",
    "training.optimizer": "name",
    "training.activation_checkpointing": "mode",
    "training.loss": "kind",
    "training.offload": "parameters",
    "training.initialization": "place",
    "training.checkpoint": "state_dict",
    "training.trainer": "name",
    "training.objective": "name",
    "training.head": "kind",
    "training.base": "held_in",
}
"""Records that may be one word, and the field that the word is."""
SECTIONS = ("model", "hardware", "parallelism", "training", "inference")
OPEN = ("model.architecture", "model.overrides", "model.rough")
"""Mappings that are values as a whole."""


def spelled_out(key: str) -> str:
    """The key of a record's field, for a record that is written as one word."""
    return f"{key}.{SHORT[key]}" if key in SHORT else key


def leaves(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Every value of the sections that a framework config can speak of; ``auto`` is no value."""
    for section in SECTIONS:
        if section in values:
            yield from _below(section, values[section])


def _below(key: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and key not in OPEN:
        for name, each in value.items():
            yield from _below(f"{key}.{name}", each)
    elif value is not None and value != "auto":
        yield spelled_out(key), value


def value_at(values: object, key: str) -> object:
    """The value of a dotted key; None where there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def grown(values: dict[str, Any], found: dict[str, object]) -> dict[str, Any]:
    """A copy of the nested ``values`` with the dotted keys of ``found`` set.

    A record that is written as one word becomes a mapping, if a further field is set in it.
    """
    grown = dict(values)
    for key, value in found.items():
        *sections, name = key.split(".")
        table, path = grown, ""
        for section in sections:
            path = f"{path}.{section}" if path else section
            below = table.get(section)
            if not isinstance(below, dict):
                below = {} if below in (None, "auto") or path not in SHORT else {SHORT[path]: below}
            table[section] = dict(below)
            table = table[section]
        table[name] = value
    return grown
