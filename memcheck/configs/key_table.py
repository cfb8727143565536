"""What memcheck knows of each format's keys: ``keys/NAME.yaml``, which readers, writers and the help of plans share.

A file has the format's ``title`` and ``version``, and any of these sections:

- ``evidence``: groups of keys. A config of the format has a key of each group.
- ``read``: keys that stand for one key of the plan (:class:`KeyRow`), by group.
- ``adapters``: the names of LoRA's arguments (:class:`AdapterKeys`).
- ``irrelevant``: keys that change no byte of a GPU, by the reason.
- ``inside``: such keys of a section, by the section, where code reads the section as a whole.
- ``unmodelled``: keys that do change memory and have no place in a plan, with the value at which they do not.
- ``refused``: keys of jobs without a memory model.
- ``upper``: keys of kernels that keep less than what is estimated.
- ``words``: the format's values and the plan's.
- ``names``: further lists of keys and values.
- ``written``: how the format says what a remedy changes (``config_words.py``), where the rows of ``read`` do not.

A name that ends with a dot means all keys below it.

``keys/index.json`` holds all files, for a fast start: run ``python -m memcheck.configs.key_index`` after a change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from memcheck.configs.types import AdapterKeys, KeyRow
from memcheck.edge.json_text import read_own_json
from memcheck.record import Record

FOLDER = os.path.join(os.path.dirname(__file__), "keys")
INDEX = os.path.join(FOLDER, "index.json")

TRAINERS = frozenset({"trl", "axolotl", "llamafactory", "ms-swift"})
"""Formats of trainers that run on top of transformers."""


class KeyTable(Record):
    """The keys of one format."""

    title: str
    """What messages call the framework."""
    version: str
    """The release that the keys were read at; empty for a table whose file says it in a comment."""
    evidence: tuple[tuple[str, ...], ...]
    rows: Mapping[str, tuple[KeyRow, ...]]
    """The section ``read``."""
    adapters: Mapping[str, AdapterKeys]
    irrelevant: Mapping[str, tuple[str, ...]]
    inside: Mapping[str, tuple[str, ...]]
    unmodelled: Mapping[str, tuple[object, str]]
    """By key: the value at which nothing is lacking, and what the estimate lacks otherwise."""
    refused: Mapping[str, str]
    """By key: what the job is, as messages say it."""
    upper: Mapping[str, str]
    words: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, tuple[str, ...]]
    written: Mapping[str, Any]
    """By key of the plan: names of the format's key, or by the plan's value the format's keys and their values."""

    def as_set(self, *names: str) -> frozenset[str]:
        """All words of these lists."""
        return frozenset(word for name in names for word in self.names[name])

    def keys(self) -> tuple[str, ...]:
        """All keys of the format that have a meaning here, and no names of sections."""
        read = [name for rows in self.rows.values() for row in rows for name in (row.path, *row.aliases)]
        known = (*read, *self.unmodelled, *self.refused, *(key for keys in self.irrelevant.values() for key in keys))
        return tuple([key for key in known if not key.endswith(".")])

    def row(self, path: str) -> KeyRow:
        """The row of one key of the format."""
        return next(row for rows in self.rows.values() for row in rows if row.path == path)


@lru_cache(maxsize=4)
def shipped(path: str) -> dict[str, dict[str, object] | str]:
    """The configs that a framework ships, by name: what bears on memory in each. A text is the name of the same config.

    Under the empty name are the keys that most of them have (``benchmarks/shipped.py``).
    """
    found: dict[str, dict[str, object] | str] = read_own_json(path)
    return found


def shipped_keys(path: str, name: str) -> tuple[str, dict[str, object]] | None:
    """The own name of a config that a framework ships, and its keys; None for an unknown name."""
    table = shipped(path)
    held, common = table.get(name) if name else None, table[""]
    if isinstance(held, str):
        name, held = held, table[held]
    if not isinstance(held, dict) or not isinstance(common, dict):
        return None
    return name, {key: value for key, value in {**common, **held}.items() if value is not None}


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    found: dict[str, Any] = read_own_json(INDEX)
    return found


def formats() -> tuple[str, ...]:
    """The names of all tables."""
    return tuple(_index())


@lru_cache(maxsize=32)
def key_table(name: str) -> KeyTable:
    """The table of a format, from the index file."""
    return from_sections(_index()[name])


def from_sections(found: Mapping[str, Any]) -> KeyTable:
    """The table of a YAML file's sections."""
    words = found.get("words", {})
    return KeyTable(
        title=found["title"],
        version=found.get("version", ""),
        evidence=tuple(tuple(group.split()) for group in found.get("evidence", ())),
        rows={
            group: tuple(_row(path, row, words) for path, row in rows.items())
            for group, rows in found.get("read", {}).items()
        },
        adapters={group: _adapters(fields) for group, fields in found.get("adapters", {}).items()},
        irrelevant=_split(found.get("irrelevant", {})),
        inside=_split(found.get("inside", {})),
        unmodelled={key: _lacks(said) for key, said in found.get("unmodelled", {}).items()},
        refused=found.get("refused", {}),
        upper=found.get("upper", {}),
        words=words,
        names=_split(found.get("names", {})),
        written=found.get("written", {}),
    )


def _split(groups: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {group: tuple(names.split()) for group, names in groups.items()}


def _row(path: str, row: str | dict[str, Any], words: Mapping[str, Mapping[str, Any]]) -> KeyRow:
    if isinstance(row, str):
        return KeyRow(path, row)
    said = row.get("words", {})
    return KeyRow(
        path=path,
        key=row["key"],
        kind=row.get("kind", "whole"),
        words=words[said] if isinstance(said, str) else said,
        default=row.get("default"),
        aliases=tuple(row.get("aliases", ())),
    )


def _adapters(fields: dict[str, Any]) -> AdapterKeys:
    return AdapterKeys(**{**fields, "targets": tuple(fields["targets"])})


def _lacks(said: str | dict[str, Any]) -> tuple[object, str]:
    return (None, said) if isinstance(said, str) else (said["default"], said["lacks"])
