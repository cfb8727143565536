"""The table of configs that a framework ships: what both scripts that write one share.

A table has one line for each config, by its name. Under the empty name are the keys that most configs have; in the line
of a config, null is such a key that it does not have. ``memcheck.configs.key_table.shipped_keys`` reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

COMMON = 0.5
"""The share of configs that have a key and value, from which on it stands once for all."""


def deciding_keys(
    values: dict[str, Any], reading: Callable[[dict[str, Any]], object], always: Collection[str]
) -> dict[str, Any]:
    """The keys of one config without which ``reading`` is another, and those of ``always``."""
    whole = reading(values)
    for key in [each for each in values if each not in always]:
        less = {each: value for each, value in values.items() if each != key}
        if reading(less) == whole:
            values = less
    return values


def table_of(found: Mapping[str, dict[str, Any]], others: Mapping[str, str]) -> str:
    """The text of a table. ``found``: keys and values by a config's name. ``others``: further names of a config."""
    counts = Counter((key, json.dumps(value)) for keys in found.values() for key, value in keys.items())
    common = {key: json.loads(value) for (key, value), count in counts.items() if count > COMMON * len(found)}
    rows: dict[str, object] = {
        name: {
            **{key: None for key in common if key not in keys},
            **{key: value for key, value in keys.items() if key not in common or common[key] != value},
        }
        for name, keys in found.items()
    }
    rows |= {name: other for name, other in sorted(others.items()) if other in found}
    lines = [f" {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    return "{\n" + f' "": {json.dumps(common)},\n' + ",\n".join(lines) + "\n}\n"
