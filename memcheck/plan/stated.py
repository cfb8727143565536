"""``KEY=VALUE`` of a command line: the value as the plan's file would have it."""

from __future__ import annotations

import math

from memcheck.plan.lookup import schema_of, types
from memcheck.plan.schema import load_schema

_NUMBERS = {"integer", "number"}
_VERSION = "_version"
"""How options of a framework end whose values are releases; the schema takes any value of an option."""


def read_stated(written: str) -> tuple[str, object]:
    """The dotted key and its value, read as YAML; a key of text keeps what is written (``4.40``).

    Raises:
        ValueError: it is of another form, no YAML, or not finite.
    """
    key, equals, text = written.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(f"{written!r} is not of the form training.micro_batch_size=4")
    from memcheck.edge.libyaml import yaml

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
    """Whether the schema has a text and no number for the key."""
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
