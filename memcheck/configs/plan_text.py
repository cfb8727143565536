"""A plan's values by dotted key: nested, flat, and written as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.types import ReadSetting
from memcheck.edge.libyaml import yaml

SECTIONS = ("name", "model", "hardware", "parallelism", "training", "inference", "policy")
WIDTH = 40
"""Column at which comments start, as far as values leave room."""


def plan_text(settings: dict[str, ReadSetting], *, schema: str = "") -> str:
    """The YAML of one plan. Keys are written in the order of the plan format, then in the order they were found."""
    lines = [f"# yaml-language-server: $schema={schema}"] if schema else []
    lines.append("memcheck: 1")
    for section in SECTIONS:
        below = {key: each for key, each in settings.items() if key.partition(".")[0] == section}
        if below and len(lines) > 1:
            lines.append("")
        lines += _lines(nested(below), 0)
    return "\n".join(lines) + "\n"


def plan_values(settings: dict[str, ReadSetting]) -> dict[str, Any]:
    """A plan of these settings, as nested mappings of plain values."""
    return {"memcheck": 1, **nested({key: setting.value for key, setting in settings.items()})}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted keys as nested mappings: ``{"training.seed": 1}`` is ``{"training": {"seed": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return tree


def _lines(tree: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    for name, each in tree.items():
        if isinstance(each, ReadSetting):
            lines.append(_line(f"{indent}{name}:", each))
        else:
            lines += [f"{indent}{name}:", *_lines(each, depth + 1)]
    return lines


def _line(head: str, setting: ReadSetting) -> str:
    text = f"{head} {scalar(setting.value)}"
    return f"{text.ljust(WIDTH)} # {setting.why}" if setting.why else text


def scalar(value: object) -> str:
    """A value in one line of YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {scalar(each)}" for name, each in value.items()) + "}"
    if isinstance(value, str):
        return value if _plain(value) else json.dumps(value, ensure_ascii=False)
    return str(value)


def _plain(text: str) -> bool:
    """Whether YAML reads the bare word as this very text, in a flow collection, too."""
    if (
        not text
        or text != text.strip()
        or text.startswith(("...", "---"))
        or any(sign in text for sign in ",[]{}#:&*!|>'\"%@`\n")
    ):
        return False
    try:
        return bool(yaml.safe_load(text) == text) and not text[0].isdigit()
    except yaml.YAMLError:  # `...` ends a document
        return False


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
ROOTS = ("model", "hardware", "parallelism", "training", "inference")
OPEN = ("model.architecture", "model.overrides", "model.rough")
"""Mappings that are values as a whole."""


def spelled_out(key: str) -> str:
    """The key of a record's field, for a record that is written as one word."""
    return f"{key}.{SHORT[key]}" if key in SHORT else key


def leaves(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Every value of the sections that a framework config can speak of; ``auto`` is no value."""
    for section in ROOTS:
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
