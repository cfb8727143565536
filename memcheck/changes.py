"""A plan with some values replaced, as if they had been written in its file: ``--set``, ``--gpu``, remedies."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.source.types import Document


def with_changes(document: Document, changes: Mapping[str, object]) -> Document:
    """The document with dotted keys set to new values; missing mappings on the way are made.

    The places of values stay what they were: a finding about a changed value points at what it replaced.
    """
    values = document.values
    for key, value in changes.items():
        values = _with(values, key.split("."), value)
    pointers = tuple("/" + key.replace(".", "/") for key in changes)
    return document._replace(values=values, changed=document.changed + pointers)


def _with(values: object, keys: list[str], value: object) -> object:
    """A copy along the path only: aliases share objects, and a change in one place must not show in another."""
    if not keys:
        return value
    table = dict(values) if isinstance(values, dict) else {}
    table[keys[0]] = _with(table.get(keys[0]), keys[1:], value)
    return table
