"""Dotted keys and values as the author of a plan would write them, whether a key has a short or a long form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from memcheck.errors import UsageError
from memcheck.plan.changes import SHORT
from memcheck.plan.places import Document
from memcheck.plan.schema import Schema, branches, load_schema, schema_of

NAMES = ("name", "config", "architecture", "rough")
"""Fields of a model of which a plan states one."""
WHOLE = frozenset({"hardware.gpu", "model"})
"""Keys that a name replaces as a whole, where a mapping is written."""
EITHER = {
    "training.global_batch_size": "training.gradient_accumulation_steps",
    "training.gradient_accumulation_steps": "training.global_batch_size",
}
"""Keys of which a plan states one at most: to set the one removes the other."""


def wish(document: Document, changes: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The changes as the plan's author would write them, and the keys to remove."""
    wanted: dict[str, object] = {}
    removed: dict[str, None] = {}
    for key, value in changes.items():
        if not key or not all(key.split(".")):
            raise UsageError(f"{key[:50]!r} is not a key of a plan", "such as training.micro_batch_size")
        spelled = _spelled(document, key)
        if value is None:
            if _is_there(document.values, spelled):
                removed[_emptied(document.values, spelled)] = None
            continue
        if value == written_value(document.values, spelled):
            continue
        wanted[spelled] = value
        other = EITHER.get(key)
        if other is not None and other not in changes and _is_there(document.values, other):
            removed[other] = None
    return in_order(_gathered(document, in_order(_of_model(document, wanted)))), tuple(removed)


def in_order(changes: dict[str, object]) -> dict[str, object]:
    """The changes with their keys as the schema has them: mappings before their fields, other keys last."""
    if len(changes) < 2:
        return changes
    places = {key: number for number, key in enumerate(every_key())}
    return {key: changes[key] for key in sorted(changes, key=lambda key: places.get(key, len(places)))}


def _of_model(document: Document, wanted: Mapping[str, object]) -> dict[str, object]:
    """The changes with a model written anew where a field of it replaces its name, or another of :data:`NAMES`."""
    here = written_value(document.values, "model")
    inside = {key: value for key, value in wanted.items() if key.startswith("model.")}
    fields = {key.split(".")[1] for key in inside}
    replaced = fields.intersection(NAMES)
    if not inside or "model" in wanted or (isinstance(here, dict) and replaced <= here.keys()):
        return dict(wanted)
    kept = here if isinstance(here, dict) else {"name": here} if here is not None else {}
    model: dict[str, object] = {name: value for name, value in kept.items() if not (replaced and name in NAMES)}
    for key, value in inside.items():
        _, *path, last = key.split(".")
        place = model
        for name in path:
            below = place.get(name)
            place[name] = dict(below) if isinstance(below, dict) else {}
            place = place[name]  # type: ignore[assignment]  # made right above
        place[last] = value
    return {**{key: value for key, value in wanted.items() if key not in inside}, "model": model}


def _gathered(document: Document, wanted: Mapping[str, object]) -> dict[str, object]:
    """The changes with fields of a key that is written as one word gathered into a mapping of that key."""
    found: dict[str, object] = {}
    for key, value in wanted.items():
        parent, _, field = key.rpartition(".")
        here = found.get(parent, written_value(document.values, parent))
        if parent not in SHORT or (isinstance(here, dict) and parent not in found):
            found[key] = value
        elif isinstance(here, dict):
            found[parent] = {**here, field: value}
        elif here is None:
            found[parent] = value if SHORT[parent] == field and takes_word(parent) else {field: value}
        else:
            found[parent] = value if SHORT[parent] == field else {SHORT[parent]: here, field: value}
    return found


def _spelled(document: Document, key: str) -> str:
    """The key of the field that a word stands for, where the plan writes a mapping under the word's key."""
    if key in SHORT and key not in WHOLE and isinstance(written_value(document.values, key), dict):
        return f"{key}.{SHORT[key]}"
    parent, _, field = key.rpartition(".")
    is_field = SHORT.get(parent) == field and not isinstance(written_value(document.values, parent), dict)
    return parent if is_field and takes_word(parent) else key


def takes_word(key: str) -> bool:
    """Whether a key may be written as one word in place of a mapping."""
    root = load_schema()
    schema = schema_of(key, root)
    return bool(schema) and any(each.get("type") != "object" for each in branches(schema, root))  # type: ignore[arg-type]


def written_value(values: object, key: str) -> object:
    """The value under a dotted key of a plan's values; None where it is not written."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _is_there(values: object, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    above = written_value(values, parent) if parent else values
    return isinstance(above, dict) and name in above


def _emptied(values: object, key: str) -> str:
    """The key to remove so that no empty mapping stays."""
    parent = key.rpartition(".")[0]
    above = written_value(values, parent) if parent else None
    return _emptied(values, parent) if isinstance(above, dict) and len(above) == 1 else key


def stated_value(values: object, key: str) -> object:
    """The value that a plan states under a key; of a word's key the word, and of its field that word, too.

    None where the plan states nothing.
    """
    found = written_value(values, key)
    parent, _, field = key.rpartition(".")
    if found is None and parent in SHORT and SHORT[parent] == field:
        above = written_value(values, parent)
        return above if not isinstance(above, (dict, list)) else None
    if isinstance(found, dict) and key in SHORT:
        return found.get(SHORT[key])
    if isinstance(found, dict) and key == "model":
        return found.get("name")
    return found


@lru_cache(maxsize=1)
def order() -> dict[str, tuple[str, ...]]:
    """The keys of every mapping of the plan format in the schema's order, by the pointer of the mapping."""
    root = load_schema()
    found: dict[str, tuple[str, ...]] = {}
    pending: list[tuple[str, Schema]] = [("", root)]
    while pending:
        pointer, schema = pending.pop()
        for each in branches(schema, root):
            if "properties" in each:
                found[pointer] = tuple(each["properties"])
                pending += [(f"{pointer}/{name}", inner) for name, inner in each["properties"].items()]
    return found


@lru_cache(maxsize=1)
def every_key() -> tuple[str, ...]:
    """Every dotted key of the plan format in the schema's order, each mapping before its fields."""
    return tuple(_below(""))


def _below(pointer: str) -> Iterator[str]:
    for name in order().get(pointer, ()):
        inner = f"{pointer}/{name}"
        yield inner[1:].replace("/", ".")
        yield from _below(inner)


def without(values: object, removed: tuple[str, ...]) -> object:
    """A copy of the values without some keys."""
    for key in removed:
        head, _, rest = key.partition(".")
        if isinstance(values, dict) and head in values:
            inner = {head: without(values[head], (rest,))} if rest else {}
            values = {name: inner.get(name, each) for name, each in values.items() if name != head or rest}
    return values
